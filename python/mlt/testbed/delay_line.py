"""Delay and jitter of links: the program of ``src/delay_line``, which holds every frame of a link for its time.

Each link with a delay has a second cable in the namespace ``lines``, and the program forwards frames between the two.
Testbed and program share one file (``src/delay_line/shared_file.h``): settings, which may change at any time, and
counters. The program lives as long as the file is locked.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import struct
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from mlt.testbed import impairments, namespaces
from mlt.testbed.errors import TestbedError
from mlt.testbed.layout import DIRECTIONS, Layout
from mlt.testbed.topology import Topology

PROGRAM = Path(__file__).parent / "mlt-delay-line"
# Frames that a direction holds: 190 ms of full frames at 1 Gbit/s. Memory is used only as they come, 1.5 KB each.
LIMIT_FRAMES = 16_384
_MAGIC = 0x31656E694C746C6D
_HEADER = struct.Struct("=QQ")
_WORDS = 16
_FIELDS = (
    "from_index", "to_index", "frame_bytes", "limit_frames", "seed", "delay_ns", "jitter_ns", "passed", "held",
    "dropped_full", "dropped_unread", "dropped_unsent",
)  # fmt: skip
# Ethernet header and a VLAN tag.
_HEADER_BYTES = 18


@dataclass(frozen=True, kw_only=True)
class DelayCounters:
    """One direction of a delay line, in frames; ``delay`` and ``jitter`` in seconds. ``held``: now. ``dropped_full``:
    beyond ``LIMIT_FRAMES``. ``dropped_unread``: in the kernel, because the program did not run for too long.
    ``dropped_unsent``: the link was broken, or the kernel rejected the frame."""

    link: str
    direction: str
    delay: float
    jitter: float
    passed: int = 0
    held: int = 0
    dropped_full: int = 0
    dropped_unread: int = 0
    dropped_unsent: int = 0


def _settings(topology: Topology, link: str, direction: str) -> tuple[float, float]:
    settings = topology.settings(link)
    delay, jitter = (getattr(settings, f"{field}_{direction}") for field in ("delay", "jitter"))
    return float(delay or 0), float(jitter or 0)


def create(file: Path, layout: Layout, topology: Topology) -> None:
    """Write the file for every link with a delay line."""
    rows = []
    for link in layout.lines:
        assert link.line is not None
        low, high = link.line
        for direction, ends in zip(DIRECTIONS, ((low, high), (high, low)), strict=True):
            delay, jitter = _settings(topology, link.name, direction)
            values = (
                ends[0].index, ends[1].index, (topology.settings(link.name).mtu or 1500) + _HEADER_BYTES, LIMIT_FRAMES,
                impairments.seed_of(topology.seed, f"{link.name} delay", direction), round(delay * 1e9),
                round(jitter * 1e9),
            )  # fmt: skip
            rows.append(struct.pack(f"={_WORDS}Q", *values, *[0] * (_WORDS - len(values))))
    file.write_bytes(_HEADER.pack(_MAGIC, len(rows)) + b"".join(rows))


def start(file: Path, namespace: Path, *, stays: bool) -> subprocess.Popen[bytes]:
    """Start the program in ``namespace``; it runs when this returns. Raises TestbedError with its own words.

    ``stays``: it outlives this process; otherwise it is killed with it.
    """
    guard = [] if stays else ["setpriv", "--pdeathsig", "KILL"]
    process = subprocess.Popen(
        [*guard, *namespaces.enter_command(namespace), str(PROGRAM), str(file)],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stderr is not None
    with process.stdout as out, process.stderr as err:
        if out.readline() != b"ready\n":
            text = err.read().decode(errors="replace").strip()
            raise TestbedError(f"the delay line could not start: {text or f'exit status {process.wait()}'}")
    return process


@contextlib.contextmanager
def _words(file: Path) -> Iterator[memoryview]:
    """The file as 64-bit words, each read and written at once; raises TestbedError if the program has ended."""
    with file.open("r+b") as opened:
        try:
            fcntl.flock(opened, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            pass
        else:
            raise TestbedError(
                f"the delay line of {file.stem} has ended, and its links carry nothing: remove the testbed with 'mlt "
                "testbed down' and create it again"
            )
        with mmap.mmap(opened.fileno(), 0) as mapped, memoryview(mapped) as view, view.cast("Q") as words:
            yield words


def _rows(layout: Layout) -> Iterator[tuple[str, str, int]]:
    """Link, direction and the number of the first word of its record."""
    places = [(link.name, direction) for link in layout.lines for direction in DIRECTIONS]
    for number, (link, direction) in enumerate(places):
        yield link, direction, 2 + number * _WORDS


def apply(file: Path, layout: Layout, topology: Topology) -> None:
    """Change delays and jitters to the topology's while frames pass."""
    with _words(file) as words:
        for link, direction, at in _rows(layout):
            delay, jitter = _settings(topology, link, direction)
            words[at + _FIELDS.index("delay_ns")] = round(delay * 1e9)
            words[at + _FIELDS.index("jitter_ns")] = round(jitter * 1e9)


def counters(file: Path, layout: Layout) -> list[DelayCounters]:
    """Both directions of every delay line."""
    found = []
    with _words(file) as words:
        for link, direction, at in _rows(layout):
            record: Mapping[str, int] = {name: words[at + i] for i, name in enumerate(_FIELDS)}
            counted = {name: record[name] for name in _FIELDS[_FIELDS.index("passed") :]}
            found.append(
                DelayCounters(
                    link=link, direction=direction, delay=record["delay_ns"] / 1e9, jitter=record["jitter_ns"] / 1e9,
                    **counted,
                )
            )  # fmt: skip
    return found
