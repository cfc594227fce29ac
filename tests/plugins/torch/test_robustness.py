"""Events beside the collectives of users' jobs: a suspended rank, loader processes, other models, a killed rank."""

from __future__ import annotations

from pathlib import Path

from checks import assert_names
from job import answers, run_job

PROGRAMS = Path(__file__).with_name("robustness_programs.py")
SUSPENDED_SECONDS = 5.0  # longer than the silence after which a rank that does not answer TCP has failed
END_SECONDS = 30.0


def test_suspended_rank__does_not_end_the_job() -> None:
    told = answers(run_job("suspended", programs=PROGRAMS, seconds=SUSPENDED_SECONDS))
    assert [rank["wrong"] for rank in told] == [0, 0]
    assert told[0]["longest"] > SUSPENDED_SECONDS - 1  # a call waited for the suspended rank


def test_data_loader__forks_processes_after_the_group_is_up() -> None:
    assert all(rank["right"] for rank in answers(run_job("data_loader", programs=PROGRAMS)))


def test_ddp__of_models_whose_parameters_differ_is_an_error_on_every_rank() -> None:
    first, second = run_job("other_order", programs=PROGRAMS)
    assert first.status == second.status == 1, (first, second)
    assert_names(second.output, "params", "shape")  # torch compares every rank's with rank 0's
    assert_names(first.output, "rank 1 at 127.0.0.1 failed", "RuntimeError")


def test_destroy__after_a_rank_was_killed_ends() -> None:
    alive = run_job("death", programs=PROGRAMS, kill=1)[0]
    assert alive.status == 0, alive.output
    assert_names(alive.answer["error"], "rank 1")
    assert alive.answer["seconds"] < END_SECONDS
