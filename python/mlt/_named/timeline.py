"""``Timeline``: when operations by name were submitted, started and completed, as a file that trace viewers read;
``StepTrace``: that of some steps.

Format: the JSON array of Chrome's Trace Event Format (chrome://tracing, Perfetto). Every tensor has a row.
"""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any


class Timeline:
    """Safe to use from any thread. ``marks_messages``: also marks when the coordinator's messages arrive."""

    def __init__(self, path: str | Path, *, marks_messages: bool = False) -> None:
        self._marks_messages = marks_messages
        self._file = Path(path).open("w", encoding="utf-8")  # noqa: SIM115 - closed by close()
        self._lock = threading.Lock()
        self._rows: dict[str, int] = {}
        self._separator = "[\n"
        self._origin = time.monotonic()

    def record(self, name: str, kind: str, submitted: float, started: float, ended: float) -> None:
        """An operation: three times of ``time.monotonic``."""
        with self._lock:
            row = self._rows.get(name)
            if row is None:
                row = self._rows[name] = len(self._rows) + 1
                self._write({"ph": "M", "name": "process_name", "pid": row, "args": {"name": name}})
            self._span(row, f"NEGOTIATE_{kind.upper()}", submitted, started)
            self._span(row, kind.upper(), started, ended)

    def message(self) -> None:
        """A message of the coordinator arrived."""
        if self._marks_messages:
            with self._lock:
                self._write(
                    {"ph": "i", "name": "CYCLE_START", "pid": 0, "ts": self._micros(time.monotonic()), "s": "g"}
                )

    def close(self) -> None:
        """Complete the file. Idempotent; later records are dropped."""
        with self._lock:
            if not self._file.closed:
                self._file.write("[]\n" if self._separator == "[\n" else "\n]\n")
                self._file.close()

    def _span(self, row: int, name: str, start: float, end: float) -> None:
        begins, ends = self._micros(max(start, self._origin)), self._micros(max(end, self._origin))
        self._write({"ph": "X", "name": name, "pid": row, "tid": 0, "ts": begins, "dur": ends - begins})

    def _micros(self, seconds: float) -> int:
        return round((seconds - self._origin) * 1e6)

    def _write(self, event: dict[str, Any]) -> None:
        if not self._file.closed:
            self._file.write(self._separator + json.dumps(event))
            self._separator = ",\n"


class StepTrace(Timeline):
    """Records the ``first`` to the ``last`` operation of each name, counted from 1: of gradients, these steps."""

    def __init__(self, path: str | Path, first: int, last: int) -> None:
        super().__init__(path)
        self._steps = range(first, last + 1)
        self._counts: dict[str, int] = {}

    def record(self, name: str, kind: str, submitted: float, started: float, ended: float) -> None:
        with self._lock:
            self._counts[name] = step = self._counts.get(name, 0) + 1
        if step in self._steps:
            super().record(name, kind, submitted, started, ended)
