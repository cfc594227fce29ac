"""``mlt.tensorflow`` between real processes: a table of semantics."""

from __future__ import annotations

import signal
from functools import partial
from pathlib import Path

import pytest
import rank_jobs
import tf_programs
from checks import assert_names
from rank_jobs import answers, table_test

PROGRAMS = Path(tf_programs.__file__)
EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "tensorflow" / "keras_digits.py"
LIMIT_SECONDS = 280.0  # importing TensorFlow and tracing take half a minute of CPU time in each process
pytestmark = pytest.mark.timeout(300)


run_job = partial(
    rank_jobs.run_job,
    programs=PROGRAMS,
    modules=("tensorflow", "keras"),  # neither starts a thread when it is imported
    limit_seconds=LIMIT_SECONDS,
)
test_semantics = table_test(tf_programs.CHECKS, run_job)


def test_uneven_batches__are_an_error_everywhere_that_names_both_operations() -> None:
    for outcome in answers(run_job("uneven_batches")):
        assert_names(outcome, "wait for each other", "rank 0 in", "metrics", "rank 1 in", "gradients of sgd", "batches")


@pytest.mark.parametrize(
    ("how", "status", "cause"),
    [
        ("error", 1, "ended by ArithmeticError without hvd.shutdown()"),
        ("Ctrl-C", -signal.SIGINT, "ended by KeyboardInterrupt without hvd.shutdown()"),
        ("signal", -signal.SIGKILL, "died: its connection ended without a goodbye"),
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
    # The survivor continued from its commits, which the new process got from it: two epochs of three steps.
    assert answers(outcomes) == [[6, 2, 1], [6, 2, 1]]


def test_example__trains_and_all_ranks_agree(tmp_path: Path) -> None:
    model = tmp_path / "model.keras"
    arguments = ["--epochs", "2", "--samples", "512", "--save", str(model)]
    losses, _ = rank_jobs.losses_of(EXAMPLE, arguments, limit_seconds=LIMIT_SECONDS)
    assert len(losses) == 2
    assert losses[1] < losses[0] / 2
    assert model.exists()
