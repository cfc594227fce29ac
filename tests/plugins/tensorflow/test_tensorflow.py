"""``mlt.tensorflow`` between real processes: a table of semantics."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import rank_jobs
import tf_programs
from checks import assert_names
from rank_jobs import Outcome, answers

PROGRAMS = Path(tf_programs.__file__)
EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "tensorflow" / "keras_digits.py"
LIMIT_SECONDS = 280.0  # importing TensorFlow and tracing take half a minute of CPU time in each process
pytestmark = pytest.mark.timeout(300)


def run_job(program: str, **options: Any) -> list[Outcome]:
    modules = ("tensorflow", "keras")  # neither starts a thread when it is imported
    return rank_jobs.run_job(program, programs=PROGRAMS, modules=modules, limit_seconds=LIMIT_SECONDS, **options)


@cache
def semantics() -> list[dict[str, str]]:
    """All checks in one job of two processes: importing TensorFlow takes seconds."""
    return answers(run_job("semantics", checks=list(tf_programs.CHECKS)))


@pytest.mark.parametrize("name", tf_programs.CHECKS)
def test_semantics(name: str) -> None:
    failures = [result[name] for result in semantics() if result[name]]
    assert failures == [], "\n".join(failures)


def test_uneven_batches__are_an_error_everywhere_that_names_both_operations() -> None:
    for outcome in answers(run_job("uneven_batches")):
        assert_names(outcome, "wait for each other", "rank 0 in", "metrics", "rank 1 in", "gradients of sgd", "batches")


@pytest.mark.parametrize(
    ("how", "status", "cause"),
    [
        ("error", 1, "ended by ArithmeticError without hvd.shutdown()"),
        ("Ctrl-C", -signal.SIGINT, "ended by KeyboardInterrupt without hvd.shutdown()"),
        ("signal", -signal.SIGKILL, "gone"),
    ],
)
def test_rank_that_ends_in_fit__is_named_on_the_other(how: str, status: int, cause: str) -> None:
    kill = 1 if how == "signal" else None
    other, ended = run_job("ends_in_fit", kill=kill, how=how)
    assert ended.status == status
    assert other.status == 0, other.output
    assert_names(other.answer, "rank 1", cause)


def test_elastic__a_killed_rank_comes_back_and_fit_goes_on_from_the_last_commit() -> None:
    killed = 0  # the harder case: it leads the others, and its state is not the one that counts
    outcomes = run_job(
        "elastic",
        kill=killed,
        again={"AGAIN": "1"},
        steps=3,
        killed=killed,
    )
    # The survivor went on from its commits, which the new process got from it: two epochs of three steps.
    assert answers(outcomes) == [[6, 2, 1], [6, 2, 1]]


def test_example__trains_and_all_ranks_agree(tmp_path: Path) -> None:
    model = tmp_path / "model.keras"
    arguments = ["--epochs", "2", "--samples", "512", "--save", str(model)]
    done = subprocess.run(
        [sys.executable, "-m", "mlt", "launch", "-n", "2", sys.executable, str(EXAMPLE), *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    losses = [float(one) for one in re.findall(r"epoch \d: loss ([\d.]+)", done.stdout)]
    assert len(losses) == 2
    assert losses[1] < losses[0] / 2
    assert model.exists()
