"""``ProcessGroup``: events until all have ended, the process that failed first, and complete cleanup."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from checks import all_gone, names, until

from mlt.demo.events import Finished, Ready
from mlt.demo.problem import DemoError
from mlt.demo.processes import ProcessGroup, ProcessSpec

CHILD = """
import os, sys, time
events = os.fdopen(int(sys.argv[1]), "wb", buffering=0)
def say(line): events.write(line.encode() + b"\\n")
"""


def group(tmp_path: Path, bodies: dict[str, str], *, stall_seconds: float = 20.0) -> ProcessGroup:
    """Processes that run the given bodies; ``say`` reports a line to the parent.

    A body sleeps where the test is about which process ends first, or about one that does not end.
    """
    for name, body in bodies.items():
        (tmp_path / f"child_{name}.py").write_text(CHILD + body)
    specs = [ProcessSpec(name, rank, f"child_{name}", str) for rank, name in enumerate(bodies)]
    environment = {"PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])}
    return ProcessGroup(specs, environment=environment, logs=tmp_path / "logs", stall_seconds=stall_seconds)


def finish(rank: int) -> str:
    return f"say({Finished(rank=rank, counters={}).model_dump_json()!r})\n"


def test_process_group__yields_events_until_all_have_ended(tmp_path: Path) -> None:
    ready = Ready(rank=0).model_dump_json()
    with group(tmp_path, {"a": f"say({ready!r})\n" + finish(0), "b": "time.sleep(0.3)\n" + finish(1)}) as processes:
        events = list(processes.events())
    assert events == [Ready(rank=0), Finished(rank=0, counters={}), Finished(rank=1, counters={})]


def test_process_group__names_the_failed_process_and_shows_its_log(tmp_path: Path) -> None:
    failing = "time.sleep(0.2)\nraise SystemExit('no more room for tensors')\n"
    with (
        group(tmp_path, {"steady": "time.sleep(60)\n", "broken": failing}) as processes,
        pytest.raises(DemoError, match=r"broken \(rank 1, pid \d+\).*exit status 1") as caught,
    ):
        list(processes.events())
    assert "no more room for tensors" in str(caught.value)
    until(lambda: all_gone(processes.pids.values()), seconds=5)


def test_process_group__reports_the_killed_process_not_its_peer(tmp_path: Path) -> None:
    bodies = {
        "noticing": "time.sleep(0.5)\nraise SystemExit('rank 1 died')\n",
        "killed": "time.sleep(0.5)\nos.kill(os.getpid(), 9)\n",
    }
    with (
        group(tmp_path, bodies) as processes,
        pytest.raises(DemoError) as caught,
    ):
        list(processes.events())
    first, _, rest = str(caught.value).partition("then ")
    assert "killed (rank 1" in first or "killed (rank 1" in rest
    assert "noticing (rank 0" in str(caught.value)


def test_process_group__times_out_when_all_are_silent(tmp_path: Path) -> None:
    with (
        group(tmp_path, {"stuck": "time.sleep(60)\n"}, stall_seconds=1.0) as processes,
        pytest.raises(DemoError, match=names("stuck", "1 s", "timeout")),
    ):
        list(processes.events())
    until(lambda: all_gone(processes.pids.values()), seconds=5)


def test_process_group__kills_processes_that_ignore_sigterm(tmp_path: Path) -> None:
    body = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + finish(0) + "time.sleep(60)\n"
    with group(tmp_path, {"deaf": body}) as processes:
        until(lambda: next(processes.events()) is not None)
    until(lambda: all_gone(processes.pids.values()), seconds=5)


def test_process_group__rejects_an_unreadable_report(tmp_path: Path) -> None:
    with (
        group(tmp_path, {"garbled": 'say(\'{"kind": "nonsense"}\')\ntime.sleep(60)\n'}) as processes,
        pytest.raises(DemoError, match=names("garbled", "unreadable")),
    ):
        list(processes.events())
