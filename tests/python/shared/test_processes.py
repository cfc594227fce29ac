"""The processes of a job, and their output after its reader has closed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from checks import assert_names, thread_states, until

from mlt._shared.processes import Ending, run


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


STOPS = "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)"


def start_each(*codes: str) -> Any:
    def start(index: int, **options: Any) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-c", codes[index]], **options)

    return start


def test_run__ends_a_stopped_process_once_the_others_have_succeeded_and_its_death_is_permitted() -> None:
    spared: list[Ending] = []
    told: list[str] = []
    outcome = run(
        ["one", "two", "three"], start_each("", STOPS, ""), grace=0.5, max_failed=1, spared=spared.append,
        lingering=told.append,
    )  # fmt: skip
    assert (outcome.code, outcome.first) == (0, None)
    assert [(one.name, one.was_stopped) for one in spared] == [("two", True)]
    assert [(one.code == 0, one.was_stopped, one.ended_by_us) for one in outcome.endings] == [
        (True, False, False), (False, True, False), (True, False, False),
    ]  # fmt: skip
    (line,) = told
    assert_names(line, "still waiting for two", "two is stopped", "kill -CONT", "500 ms")


@pytest.mark.parametrize("at_the_end", ["", "import signal, sys; signal.signal(15, lambda *_: sys.exit(0)); "])
def test_run__a_stopped_process_whose_death_is_not_permitted_fails_the_run(at_the_end: str) -> None:
    spared: list[Ending] = []
    outcome = run(["one", "two"], start_each("", at_the_end + STOPS), grace=0.5, spared=spared.append)
    assert outcome.code == (1 if at_the_end else 128 + signal.SIGTERM)
    assert outcome.first is not None
    assert outcome.first.name == "two"
    assert outcome.first.was_stopped
    assert not spared


def test_run__a_stopped_process_that_is_continued_in_time_ends_as_it_likes() -> None:
    told: list[str] = []

    def proceed(text: str) -> None:
        told.append(text)
        os.kill(int(re.findall(r"-CONT (\d+)", text)[0]), signal.SIGCONT)

    outcome = run(["one", "two"], start_each("", STOPS), grace=60.0, lingering=proceed)
    assert (outcome.code, len(told)) == (0, 1)
    assert not any(one.was_stopped for one in outcome.endings)


def test_run__waits_for_a_stopped_process_while_another_runs_or_none_has_succeeded(tmp_path: Path) -> None:
    # The second fails, which is permitted, and one must be left: only the first, which is stopped, can be that one.
    me = tmp_path / "pid"
    stops = f"import os, pathlib; pathlib.Path({str(me)!r}).write_text(str(os.getpid())); {STOPS}"
    asked = 0

    def count() -> tuple[str, ...]:
        nonlocal asked
        asked += 1
        if asked == 150:  # at least 20 ms each: much more than the grace
            os.kill(int(me.read_text()), signal.SIGCONT)
        return ()

    def start(index: int, **options: Any) -> subprocess.Popen[bytes]:
        process = subprocess.Popen([sys.executable, "-c", (stops, "import sys; sys.exit(3)")[index]], **options)
        if index == 0:
            until(lambda: thread_states(process.pid) == ["T"])
        return process

    outcome = run(["one", "two"], start, grace=0.1, max_failed=1, joining=count)
    assert (outcome.code, [one.code for one in outcome.endings]) == (0, [0, 3])


@pytest.mark.parametrize(("permitted", "code"), [(1, 0), (0, 128 + signal.SIGTERM)])
def test_run__a_stopped_service_counts_as_dead_once_nobody_is_left_to_serve(permitted: int, code: int) -> None:
    spared: list[Ending] = []

    def start(index: int, **options: Any) -> subprocess.Popen[bytes]:
        process = subprocess.Popen([sys.executable, "-c", ("", STOPS, "")[index]], **options)
        if index == 1:
            until(lambda: thread_states(process.pid) == ["T"])
        elif index == 2:
            process.wait()  # by itself, however slow this host is
        return process

    outcome = run(
        ["one", "service 0", "service 1"], start, grace=1.0, services=2, max_failed_services=permitted,
        spared=spared.append,
    )  # fmt: skip
    assert outcome.code == code
    assert [(one.name, one.was_stopped) for one in spared] == [("service 0", True)] * permitted
    assert [one.was_stopped for one in outcome.endings] == [False, True, False]


def start_after_the_service(*codes: str) -> Any:
    """The service is the last, and has ended when the run begins to wait."""

    def start(index: int, **options: Any) -> subprocess.Popen[bytes]:
        process = subprocess.Popen([sys.executable, "-c", codes[index]], **options)
        if index == len(codes) - 1:
            process.wait()
        return process

    return start


def test_run__lets_a_job_decide_itself_what_follows_when_no_service_is_left() -> None:
    spared: list[Ending] = []
    codes = ("import time; time.sleep(3)", "import sys; sys.exit(9)")
    outcome = run(
        ["one", "service"], start_after_the_service(*codes), grace=0.1, services=1, max_failed=9, max_failed_services=9,
        all_services_may_fail=True, spared=spared.append,
    )  # fmt: skip
    assert outcome.code == 0
    assert [one.code for one in outcome.endings] == [0, 9]
    assert [one.name for one in spared] == ["service"]


def test_run__a_job_that_fails_without_a_service_has_the_services_status() -> None:
    codes = ("import sys, time; time.sleep(3); sys.exit(1)", "import sys; sys.exit(9)")
    outcome = run(
        ["one", "service"], start_after_the_service(*codes), services=1, max_failed=9, max_failed_services=9,
        all_services_may_fail=True,
    )  # fmt: skip
    assert outcome.code == 9
    assert outcome.first is not None
    assert outcome.first.name == "service"
