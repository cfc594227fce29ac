"""``mlt.mxnet`` between real processes: a table of semantics."""

from __future__ import annotations

import signal
from functools import partial
from pathlib import Path

import mx_programs
import pytest
import rank_jobs
from checks import assert_names
from rank_jobs import answers, table_test

PROGRAMS = Path(mx_programs.__file__)
EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "mxnet" / "gluon_digits.py"
LIMIT_SECONDS = 200.0
pytestmark = pytest.mark.timeout(220)


run_job = partial(rank_jobs.run_job, programs=PROGRAMS, limit_seconds=LIMIT_SECONDS)
test_semantics = table_test(mx_programs.CHECKS, run_job)


def test_uneven_batches__are_an_error_everywhere_that_names_both_operations() -> None:
    for outcome in answers(run_job("uneven_batches")):
        assert_names(outcome, "wait for each other", "'metric'", "gradients of the trainer")


@pytest.mark.parametrize(
    ("how", "status", "cause"),
    [
        ("error", 1, "ended by ArithmeticError without hvd.shutdown()"),
        ("operator", 1, "ended by mxnet.base.MXNetError without hvd.shutdown()"),
        ("Ctrl-C", -signal.SIGINT, "ended by KeyboardInterrupt without hvd.shutdown()"),
        ("signal", -signal.SIGKILL, "died: its connection ended without a goodbye"),
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
    arguments = ["--epochs", "2", "--samples", "1024", *options]
    losses, printed = rank_jobs.losses_of(EXAMPLE, arguments, limit_seconds=LIMIT_SECONDS)
    assert len(losses) == 2
    assert losses[1] < losses[0] / 2
    assert "the same on all ranks" in printed
