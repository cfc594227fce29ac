"""The load of this host by other programs during a run: beside a compiler every transport is slower."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_STAT: Final = Path("/proc/stat")
# Fields of its first line, in ticks: user (with guests), nice, system; what the hypervisor gave to others.
_BUSY, _STOLEN = (0, 1, 2), 7


@dataclass(frozen=True)
class _Sample:
    seconds: float
    busy: float  # of all programs of the machine and its kernel threads, seconds of a core
    stolen: float
    own: float  # of this process and of those of its children that have ended


class BusyElsewhere:
    """From its construction on; processes that this one started count as its own once they have ended."""

    def __init__(self) -> None:
        self._first = _sample()

    def share(self) -> float | None:
        """Part of the machine's cores that others had, 0 to 1; None if the system does not count it."""
        first, last = self._first, _sample()
        if first is None or last is None:
            return None
        others = max(last.busy - first.busy - (last.own - first.own), 0.0) + last.stolen - first.stolen
        seconds = (last.seconds - first.seconds) * (os.cpu_count() or 1)
        return min(max(others / seconds, 0.0), 1.0) if seconds > 0 else None


def _sample() -> _Sample | None:
    try:
        fields = _STAT.read_text(encoding="ascii").split("\n", 1)[0].split()[1:]
        counts = [int(field) / os.sysconf("SC_CLK_TCK") for field in fields]
        busy, stolen = sum(counts[field] for field in _BUSY), counts[_STOLEN]
    except (OSError, ValueError, IndexError):
        return None
    times = os.times()
    own = times.user + times.system + times.children_user + times.children_system
    return _Sample(time.monotonic(), busy, stolen, own)
