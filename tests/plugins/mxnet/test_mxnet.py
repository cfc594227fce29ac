"""``mlt.mxnet`` between real processes: a table of semantics."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import mx_programs
import pytest
import rank_jobs
from checks import assert_names
from rank_jobs import Outcome, answers

PROGRAMS = Path(mx_programs.__file__)
EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "mxnet" / "gluon_digits.py"
LIMIT_SECONDS = 200.0
pytestmark = pytest.mark.timeout(220)


def run_job(program: str, **options: Any) -> list[Outcome]:
    return rank_jobs.run_job(program, programs=PROGRAMS, limit_seconds=LIMIT_SECONDS, **options)


@cache
def semantics() -> list[dict[str, str]]:
    """All checks in one job of two processes."""
    return answers(run_job("semantics", checks=list(mx_programs.CHECKS)))


@pytest.mark.parametrize("name", mx_programs.CHECKS)
def test_semantics(name: str) -> None:
    failures = [result[name] for result in semantics() if result[name]]
    assert failures == [], "\n".join(failures)


def test_uneven_batches__are_an_error_everywhere_that_names_both_operations() -> None:
    for outcome in answers(run_job("uneven_batches")):
        assert_names(outcome, "wait for each other", "'metric'", "gradients of the trainer")


@pytest.mark.parametrize(
    ("how", "status", "cause"),
    [
        ("error", 1, "ended by ArithmeticError without hvd.shutdown()"),
        ("operator", 1, "ended by mxnet.base.MXNetError without hvd.shutdown()"),
        ("Ctrl-C", -signal.SIGINT, "ended by KeyboardInterrupt without hvd.shutdown()"),
        ("signal", -signal.SIGKILL, "gone"),
    ],
)
def test_rank_that_ends_in_training__is_named_on_the_other(how: str, status: int, cause: str) -> None:
    kill = 1 if how == "signal" else None
    other, ended = run_job("ends_in_training", kill=kill, how=how)
    assert ended.status == status
    assert other.status == 0, other.output
    assert_names(other.answer, "rank 1", cause)


@pytest.mark.parametrize("options", [["--loss-bound", "0.1"], ["--kvstore"]], ids=["trainer", "kvstore"])
def test_example__trains_and_all_ranks_agree(options: list[str]) -> None:
    arguments = ["--epochs", "2", "--samples", "512", *options]
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
    assert "the same on all ranks" in done.stdout
