"""``mlt elastic`` as a person types it; what its members see is in ``transport/test_elastic.py``."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from checks import assert_names

from mlt._shared.ports import free_port
from mlt.cli import elastic as command
from mlt.job.epochs.coordinator import Coordinator
from mlt.job.epochs.settings import Bounds, Place

COMMAND = [sys.executable, "-m", "mlt.cli.main", "elastic"]


def run(*words: str) -> subprocess.CompletedProcess[str]:
    own = {name: value for name, value in os.environ.items() if not name.startswith("MLT_")}
    return subprocess.run([*COMMAND, *words], env={**own, "COLUMNS": "200"}, capture_output=True, text=True, timeout=30)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_elastic__says_where_it_listens_and_ends_by_a_signal(number: signal.Signals, status: int) -> None:
    place = f"127.0.0.1:{free_port()}"
    process = subprocess.Popen([*COMMAND, "--listen", place], stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        assert_names(process.stderr.readline(), "mlt elastic: listens at", place, str(process.pid))
        process.send_signal(number)
        assert process.wait(20) == status
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("words", "facts"),
    [
        (("--min-workers", "3", "--max-workers", "2"), ("3 to 2 workers",)),
        (("--listen", "nowhere:0"), ("--listen", "nowhere:0")),
        (("--listen", "0.0.0.0:29700"), ("0.0.0.0", "MLT_JOB_SECRET")),
    ],
)
def test_elastic__names_what_is_wrong(words: tuple[str, ...], facts: tuple[str, ...]) -> None:
    done = run(*words)
    assert done.returncode == 2
    assert_names(done.stderr, *facts)
    assert command.DEFAULT_PORT == 29_700


def test_elastic__names_a_port_in_use() -> None:
    with Coordinator(Place("127.0.0.1", 0), Bounds()) as other:
        done = run("--listen", str(other.place))
    assert done.returncode == 1
    assert_names(done.stderr, str(other.place), "another process listens there")
