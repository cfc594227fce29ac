"""``mlt launch --min-workers``: jobs of this host whose workers come and go."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from checks import assert_names, until
from launch_jobs import KILL_SERVICE, launch
from transport_jobs import takes

from mlt.cli.launch_elastic import Additions

pytest.importorskip("mlt._core")
EXAMPLE = Path(__file__).parents[3] / "examples" / "elastic.py"
LIMIT_SECONDS = 60.0
SERVED = """
import numpy as np, mlt
from mlt.elastic import Membership
with Membership() as membership:
    context = membership.next_epoch()
    tensor = np.full(1000, context.rank + 1.0, np.float32)
    mlt.PushPull(context).push_pull(tensor, key=1).wait(30)
    print("pulled", tensor[0], context.world_size, flush=True)
"""


class Launched:
    """``mlt launch`` of the example: its output as it comes."""

    def __init__(self, *words: str) -> None:
        own = {name: value for name, value in os.environ.items() if not name.startswith("MLT_")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "mlt.cli.main", "launch", *words],
            env=own, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        self.lines.extend(iter(self.process.stdout.readline, ""))

    def line(self, pattern: str, count: int = 1) -> re.Match[str]:
        """Wait for ``count`` lines of this pattern; the last."""

        def found() -> list[re.Match[str]]:
            return [match for line in list(self.lines) if (match := re.search(pattern, line))]

        return until(lambda: found()[count - 1 :], LIMIT_SECONDS)[0]

    def end(self) -> int:
        status = self.process.wait(LIMIT_SECONDS)
        self._reader.join(LIMIT_SECONDS)
        return status


@contextlib.contextmanager
def launched(*words: str) -> Iterator[Launched]:
    own = Launched(*words)
    try:
        yield own
    finally:
        own.process.terminate()
        own.end()


def test_launch__grows_by_a_signal_and_continues_without_a_worker_that_is_killed() -> None:
    train = (sys.executable, str(EXAMPLE), "--steps", "500", "--seconds-per-step", "0.02")
    with launched("-n", "2", "--min-workers", "2", *train) as own:
        pid = int(own.line(r"kill -USR1 (\d+)")[1])
        assert pid == own.process.pid
        own.line(r"epoch 1: rank \d of 2", 2)
        os.kill(pid, signal.SIGUSR1)
        own.line(r"epoch 2: rank \d of 3", 3)
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        os.kill(int(children[0]), signal.SIGKILL)
        own.line(r"epoch 3: rank \d of 2", 2)
        assert own.end() == 0, own.lines
        text = "".join(own.lines)
        assert_names(text, "worker 0 ended with exit code 137", "the others continue without it", "starts worker 2")
        ends = re.findall(r"done: (.*)", text)
        assert len(ends) == 2
        assert len(set(ends)) == 1  # the same bits


def test_launch__starts_services_that_end_with_the_workers() -> None:
    done = launch("-n", "2", "-s", "1", "--min-workers", "1", sys.executable, "-c", SERVED)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["[0] pulled 1.5 2", "[1] pulled 1.5 2"]


LOSING = """
import sys, numpy as np, mlt
from mlt.elastic import Membership
with Membership() as membership:
    while True:
        context = membership.next_epoch()
        push_pull = mlt.PushPull(context)
        try:
            push_pull.push_pull(np.ones(1000, np.float32), key=1).wait(50)
            if context.rank == 0:
                kill_service()
            while True:
                push_pull.push_pull(np.ones(1000, np.float32), key=1).wait(50)
        except (mlt.PeerFailedError, mlt.CancelledError) as error:
            print("the epoch ends:", error, flush=True)
"""


def test_launch__workers_without_a_service_wait_for_another_and_the_job_says_why_it_fails() -> None:
    words = ("-n", "2", "-s", "1", "--min-workers", "1", "--wait", "10s", "--grace", "100ms")
    done = launch(*words, sys.executable, "-c", KILL_SERVICE + LOSING, seconds=120)
    assert done.returncode == 128 + signal.SIGKILL, done.stderr
    assert_names(
        done.stderr, "service 0 ended with exit code 137", "too few services are left", "10 s (--wait)",
        "service 0 failed first",
    )  # fmt: skip
    assert_names(done.stdout, "RendezvousError", "2 workers and 0 services, needs 1 service", "within 10 s")


def test_launch__ends_a_stopped_worker_once_another_has_succeeded(tmp_path: Path) -> None:
    program = f"""
import os, signal
try:
    os.close(os.open({str(tmp_path / "first")!r}, os.O_CREAT | os.O_EXCL))
    os.kill(os.getpid(), signal.SIGSTOP)
except FileExistsError:
    pass
"""
    done = launch("-n", "3", "--min-workers", "1", "--grace", "500ms", sys.executable, "-c", program)
    assert done.returncode == 0, done.stderr
    assert_names(done.stderr, "is stopped, and kill -CONT", "was stopped by a signal", "was ended")


def test_launch__too_few_end_the_job_with_an_error_that_has_the_numbers() -> None:
    fails = "import sys; sys.exit(7)"
    done = launch("-n", "2", "--min-workers", "2", "--wait", "1s", sys.executable, "-c", fails)
    assert done.returncode == 7
    assert_names(done.stderr, "worker", "exit code 7")


def test_launch__a_worker_that_fails_before_it_joins_is_not_waited_for(tmp_path: Path) -> None:
    first = tmp_path / "first"
    program = f"""
import os, runpy, sys
try:
    os.close(os.open({str(first)!r}, os.O_CREAT | os.O_EXCL))
    sys.exit(9)
except FileExistsError:
    sys.argv = ["elastic.py", "--steps", "3"]
    runpy.run_path({str(EXAMPLE)!r}, run_name="__main__")
"""
    with takes(at_most=40.0):  # not the 60 s of --wait
        done = launch("-n", "2", "--min-workers", "1", sys.executable, "-c", program)
    assert done.returncode == 0, done.stderr
    assert_names(done.stderr, "ended with exit code 9", "the others continue without it")


@pytest.mark.parametrize(
    ("words", "facts"),
    [
        (("-n", "2", "--min-workers", "3"), ("starts with 2 workers", "--min-workers")),
        (("-n", "4", "--max-workers", "3"), ("4 to 3 workers", "--max-workers")),
        (("--byteps", "--min-workers", "1"), ("--byteps",)),
        (("-s", "1", "--max-dead-workers", "1", "--min-workers", "1"), ("--max-dead-workers",)),
    ],
)
def test_launch__options_that_contradict_each_other_are_rejected(
    words: tuple[str, ...], facts: tuple[str, ...]
) -> None:
    done = launch(*words, sys.executable, "-c", "")
    assert done.returncode == 2
    assert_names(done.stderr, *facts)


@pytest.mark.parametrize(
    ("words", "facts"),
    [
        (("--wait", "1s"), ("--wait", "--min-workers")),
        (("-s", "1", "--max-dead-workers", "1"), ("--max-dead-workers", "elastic")),
        (("-s", "1", "--max-dead-services", "1"), ("--max-dead-services", "elastic")),
        (("--byteps",), ("--byteps", "MLT_ELASTIC")),
        (("--min-workers", "1"), ("--min-workers", "MLT_ELASTIC")),
        (("--max-workers", "4"), ("--max-workers", "MLT_ELASTIC")),
    ],
)
def test_launch__options_that_another_jobs_coordinator_decides_are_rejected(
    words: tuple[str, ...], facts: tuple[str, ...]
) -> None:
    done = launch(*words, sys.executable, "-c", "print('started')", MLT_ELASTIC="127.0.0.1:1", COLUMNS="200")
    assert (done.returncode, done.stdout) == (2, "")
    assert_names(done.stderr, *facts)


def test_additions__are_one_for_each_signal() -> None:
    told: list[str] = []

    def say(text: str) -> None:
        told.append(text)
        if len(told) == 2:
            os.kill(os.getpid(), signal.SIGUSR1)  # while others are taken

    additions = Additions(4, say=say)
    with additions.by_signal():
        assert additions.take() == []
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGUSR1)
        assert additions.take() == ["worker 4", "worker 5", "worker 6"]
        assert additions.take() == []
    assert told == ["starts worker 4", "starts worker 5", "starts worker 6"]
