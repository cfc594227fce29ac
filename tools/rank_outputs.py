"""The processes of one measurement: their output, and the end of all of them when one fails."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

PIPES: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
_LAST_CHARACTERS = 3_000


class RankError(RuntimeError):
    """A rank failed; the text has the measurement, the rank, its exit status and the end of its errors."""


def outputs_of(what: str, processes: Sequence[subprocess.Popen[str]], limit_seconds: float) -> list[str]:
    """The standard output of each rank, once all have ended; they were started with ``PIPES``.

    ``what``: the measurement, for errors. The first rank that fails, or does not end within ``limit_seconds``, ends the
    others. Raises RankError.

    >>> import sys
    >>> outputs_of("example", [subprocess.Popen([sys.executable, "-c", "print(7)"], **PIPES)], 30)
    ['7\\n']
    """
    with ThreadPoolExecutor(len(processes)) as pool:
        waits = [pool.submit(process.communicate, timeout=limit_seconds) for process in processes]
        try:
            for wait in as_completed(waits):
                rank = waits.index(wait)
                try:
                    printed, errors = wait.result()
                except subprocess.TimeoutExpired:
                    raise RankError(f"{what}: rank {rank} did not end within {limit_seconds:g} s") from None
                if (status := processes[rank].returncode) != 0:
                    end = f"{printed}{errors}"[-_LAST_CHARACTERS:]
                    raise RankError(f"{what}: rank {rank} ended with status {status}: {end}")
        finally:
            for process in processes:
                process.kill()
    return [wait.result()[0] for wait in waits]


def results_of(what: str, processes: Sequence[subprocess.Popen[str]], limit_seconds: float) -> list[dict[str, Any]]:
    """The JSON object in the last line of each rank's output. Raises RankError."""
    return [dict(json.loads(text.splitlines()[-1])) for text in outputs_of(what, processes, limit_seconds)]
