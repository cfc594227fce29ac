"""Shared by the tests of ``mlt.testbed``: what they need, a small policy, and UDP traffic from inside hosts."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import pytest

from mlt.testbed import QueueCounters, Testbed, make
from mlt.testbed.requirements import problems

ROOT = Path(__file__).resolve().parents[3]
POLICY = ROOT / "examples" / "testbed" / "qos.yaml"
PAYLOAD = 1400
WIRE = PAYLOAD + 42
ECT, NOT_ECT = 2, 0
PORT = 9000
MLT = [sys.executable, "-m", "mlt.cli.main", "testbed"]

Result = TypeVar("Result")


def missing() -> str:
    """Why a testbed cannot be made here, or nothing."""
    if os.geteuid() != 0:
        return "needs root"
    return "; ".join(problems(make({"hosts": 2})))


# One reason for the whole file where a real testbed is needed.
needs_testbed = pytest.mark.skipif(bool(missing()), reason=missing() or "-")


def leftovers(name: str) -> list[str]:
    """Whatever still exists of a testbed."""
    places = [Path("/run/netns").glob(f"mlt-{name}-*"), Path("/run/mlt-testbed").glob(f"{name}.json")]
    return [str(path) for place in places for path in place]


def command(*words: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    """``mlt testbed WORDS``, to its end."""
    return subprocess.run([*MLT, *words], capture_output=True, text=True, timeout=timeout, check=False)


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def udp(bed: Testbed, host: str, tos: int = 0) -> socket.socket:
    """A socket on ``host`` whose packets carry ``tos``."""

    def make_socket() -> socket.socket:
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, tos)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)
        return sock

    return bed.inside(host, make_socket)


def sink(bed: Testbed, host: str, port: int = PORT) -> socket.socket:
    """A bound socket that need not be read: without it every packet would be answered by ICMP."""
    sock = udp(bed, host)
    sock.bind((bed.address(host), port))
    return sock


def resolve(bed: Testbed, source: str, target: str) -> None:
    """Have the address resolved before anything is counted: packets that wait for it are few and dropped silently."""
    with sink(bed, target, PORT + 1) as there, udp(bed, source) as here:
        there.settimeout(0.2)
        for _ in range(50):
            here.sendto(b"?", (bed.address(target), PORT + 1))
            try:
                there.recv(16)
            except TimeoutError:
                continue
            return
    raise AssertionError(f"{target} never heard {source}")


def queue(bed: Testbed, switch: str, port: str, name: str) -> QueueCounters:
    """The counters of one class on one port."""
    (found,) = [row for row in bed.counters() if (row.switch, row.port, row.name) == (switch, port, name)]
    return found


def valid(attempts: Sequence[Callable[[], Result | None]]) -> Result:
    """The first measurement that was valid by its own rule (None if not): never by its result."""
    for attempt in attempts:
        result = attempt()
        if result is not None:
            return result
    pytest.fail(f"{len(attempts)} measurements were invalid: this machine stalls too long to send a burst")
