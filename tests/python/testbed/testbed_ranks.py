"""Shared by tests of jobs on a testbed: the ranks of a job, one per host, and programs at a host's link that drop or
rewrite its packets."""

from __future__ import annotations

import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mlt.testbed import Testbed, libbpf, links, programs

HERE = Path(__file__).parent
TAMPER = programs.Source(HERE / "tamper.bpf.c", "tamper")
DROP_SYN = programs.Source(HERE / "drop_syn.bpf.c", "drop_syn")
RENDEZVOUS = 29_001

# Before the program of each rank. Its own words begin at sys.argv[3].
PROLOGUE = f"""
import sys
import time
import numpy as np
import mlt
rank, size = int(sys.argv[1]), int(sys.argv[2])
def connect(**options):
    return mlt.Context(rank, size, master_addr="10.77.0.1", rendezvous_port={RENDEZVOUS},
                       secret="a secret of this test only", **options)
"""


def start(
    bed: Testbed, job: str, ranks: int, *words: object, stdin: int = subprocess.PIPE
) -> list[subprocess.Popen[str]]:
    """The program ``job`` as rank i on host i."""
    return [
        bed.popen(
            f"host{rank}", [sys.executable, "-c", PROLOGUE + job, *map(str, (rank, ranks, *words))],
            stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(ranks)
    ]  # fmt: skip


def texts_of(bed: Testbed, job: str, ranks: int, *words: object) -> list[str]:
    """The output of each rank until its end."""
    return [one.communicate(timeout=60)[0] for one in start(bed, job, ranks, *words, stdin=subprocess.DEVNULL)]


@contextmanager
def running(bed: Testbed, job: str, ranks: int, *words: object) -> Iterator[list[subprocess.Popen[str]]]:
    """The ranks, which read lines from ``say``; killed at the end of the block."""
    started = start(bed, job, ranks, *words)
    try:
        yield started
    finally:
        for one in started:
            one.kill()
            one.communicate()


def say(rank: subprocess.Popen[str], line: object = "") -> None:
    """Write a line to a rank's standard input."""
    assert rank.stdin is not None
    print(line, file=rank.stdin, flush=True)


@contextmanager
def tampering(
    bed: Testbed, host: str, folder: Path, *, keep: int = 0xFF, put: int = 0, drop: int = 0
) -> Iterator[None]:
    """Until the end of the block, rewrite the TOS byte of every UDP packet that leaves ``host``, and drop every packet
    of IP protocol ``drop`` that carries data."""
    entry, nothing = struct.pack("=III", keep, put, drop), struct.pack("=III", 0xFF, 0, 0)
    with _at_link(bed, host, folder, TAMPER, "tampering", entry) as table:
        yield
        table.update(struct.pack("=I", 0), nothing)  # the program stays with the link


@contextmanager
def dropping(bed: Testbed, host: str, target: str, ports: tuple[int, int], folder: Path) -> Iterator[None]:
    """Drop new TCP connections of ``host`` to ports of ``target``, until the testbed is gone."""
    entry = socket.inet_aton(bed.address(target)) + struct.pack("=II", *ports)
    with _at_link(bed, host, folder, DROP_SYN, "dropping", entry):
        yield


@contextmanager
def _at_link(
    bed: Testbed, host: str, folder: Path, source: programs.Source, name: str, entry: bytes
) -> Iterator[libbpf.Table]:
    """Compile ``source``, and run it for each packet that leaves ``host``; its table ``name`` has ``entry``."""
    program = libbpf.Program(programs.compile_into(source, folder), source.program)
    table = program.table(name)
    try:
        table.update(struct.pack("=I", 0), entry)
        links.attach(bed.layout.link(host).lower, bed.path, program.fd, source.program, ingress=False)
        yield table
    finally:
        table.close()
        program.close()
