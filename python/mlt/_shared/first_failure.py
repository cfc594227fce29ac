"""The process of a run that failed first, for the exit status of ``mlt launch`` and ``mlt testbed run``.

The peers of a rank that fails may end before it does. So a context that closes because of a failure first appends a
line to the launcher's file: when, its rank, and the rank that the failure is about. Only for processes of one host,
which share the clock.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Mapping
from pathlib import Path

VARIABLE = "MLT_LAUNCH_FAILURES"
_LINE = re.compile(r"(\d+) (\d+) (-?\d+)\n")
_NOBODY = -1
MAX_BYTES = 1 << 20


def record(rank: int, about: int | None, environ: Mapping[str, str] = os.environ) -> None:
    """Report that ``rank``, which is this process, has failed, because of rank ``about`` if that is known; raises
    nothing."""
    path = environ.get(VARIABLE)
    if not path:
        return
    line = f"{time.monotonic_ns()} {rank} {_NOBODY if about is None else about}\n"
    with contextlib.suppress(OSError, ValueError):
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)  # never made anew: the launcher may have ended
        try:
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)


class FailureLog:
    """The launcher's file, as a context manager. ``environment`` is for every process; empty where no file can be made,
    which leaves only the ends of the processes as evidence."""

    def __init__(self) -> None:
        import tempfile  # with its own imports it takes milliseconds, which contexts must not wait for

        self._file = Path()
        self.environment: dict[str, str] = {}
        with contextlib.suppress(OSError):
            self._file = Path(tempfile.mkdtemp(prefix="mlt-run-")) / "failures"
            self._file.touch(mode=0o600)
            self.environment = {VARIABLE: str(self._file)}

    def __enter__(self) -> FailureLog:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._file.unlink(missing_ok=True)
            self._file.parent.rmdir()

    def first(self, ended: Mapping[int, float]) -> int:
        """The rank that failed first. ``ended``: when each failed rank ended (``time.monotonic``), at least one."""
        records: dict[int, tuple[float, int]] = {}
        for line in self._lines():
            when, rank, about = int(line[1]) / 1e9, int(line[2]), int(line[3])
            if rank in ended:
                records[rank] = when, about  # the last: a program may continue after a failure
        first = min(ended, key=lambda rank: records[rank][0] if rank in records else ended[rank])
        # A rank that was killed, or ended without an exception, recorded nothing, and its peers may notice its end
        # before this process does.
        about = records[first][1] if first in records else _NOBODY
        return about if about in ended and about not in records else first

    def _lines(self) -> list[re.Match[str]]:
        with contextlib.suppress(OSError), self._file.open("rb") as file:
            return list(_LINE.finditer(file.read(MAX_BYTES).decode("ascii", errors="replace")))
        return []
