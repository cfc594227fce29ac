"""The processes of a job, and their output after its reader has closed."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import Any

import pytest

from mlt._shared.processes import run


def start_of(code: str) -> Any:
    def start(_: int, **options: Any) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-c", code], **options)

    return start


def test_run__writes_nothing_after_its_output_is_closed() -> None:
    written = []

    def write(_: int, line: bytes) -> None:
        written.append(line)
        if len(written) == 3:
            raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        run(["one"], start_of("while True: print('y')"), write=write)
    assert len(written) == 3


def test_run__writes_nothing_once_it_has_ended() -> None:
    # A grandchild holds the pipe and goes on writing, every 50 ms, after the child has ended.
    grandchild = "import time\nfor _ in range(100): print('late', flush=True); time.sleep(0.05)"
    child = (
        "import subprocess, sys, time; "
        f"subprocess.Popen([sys.executable, '-c', {grandchild!r}], start_new_session=True); time.sleep(1)"
    )
    written = []
    outcome = run(["one"], start_of(child), write=lambda _, line: written.append(line))
    assert outcome.code == 0
    before = len(written)
    assert before > 0
    time.sleep(0.5)  # ten lines of the grandchild's, which nobody may print
    assert len(written) == before
