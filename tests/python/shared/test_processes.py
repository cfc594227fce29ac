"""The processes of a job, and their output after its reader has closed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from checks import until

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


def test_run__writes_nothing_once_it_has_ended(tmp_path: Path) -> None:
    # A grandchild holds the pipe and continues to write, every 50 ms, after the child has ended.
    counted = tmp_path / "lines"
    grandchild = (
        f"import time\nout = open({str(counted)!r}, 'w')\n"
        "for _ in range(100): print('late', flush=True); out.write('1'); out.flush(); time.sleep(0.05)"
    )
    child = (
        "import subprocess, sys, time; "
        f"subprocess.Popen([sys.executable, '-c', {grandchild!r}], start_new_session=True); time.sleep(1)"
    )
    written = []
    outcome = run(["one"], start_of(child), write=lambda _, line: written.append(line))
    assert outcome.code == 0
    before = len(written)
    assert before > 0
    lines = counted.stat().st_size
    until(lambda: counted.stat().st_size > lines + 10)
    assert len(written) == before


def test_run__starts_those_that_join_and_waits_for_them_and_a_service_is_none_of_the_served() -> None:
    joining = [["third"], []]
    lines: list[tuple[int, bytes]] = []
    code = "import sys, time; time.sleep(0.2); print('here')"
    outcome = run(
        ["first", "service"], start_of(code), services=1, write=lambda *line: lines.append(line),
        joining=lambda: joining.pop(0) if joining else (),
    )  # fmt: skip
    assert outcome.code == 0
    assert [ending.name for ending in outcome.endings] == ["first", "service", "third"]
    assert sorted(lines) == [(index, b"here") for index in range(3)]


def test_run__failures_do_not_count_while_one_succeeds() -> None:
    joining = [["third"], []]
    spared = []

    def start(index: int, **options: Any) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-c", f"import sys; sys.exit({7 if index < 2 else 0})"], **options)

    outcome = run(
        ["first", "second"], start, max_failed=100, spared=spared.append,
        joining=lambda: joining.pop(0) if joining else (),
    )  # fmt: skip
    assert outcome.code == 0
    assert sorted(ending.name for ending in spared) == ["first", "second"]
