"""CrossBarrier between real processes: the bits of DistributedOptimizer, layers that run early, and failures."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import cross_barrier_programs
import pytest
from checks import assert_names
from job import answers, run_job

PROGRAMS = Path(cross_barrier_programs.__file__)


@cache
def semantics() -> list[dict[str, str]]:
    return answers(run_job("semantics", programs=PROGRAMS, checks=list(cross_barrier_programs.CHECKS)))


@pytest.mark.parametrize("name", cross_barrier_programs.CHECKS)
def test_semantics__of_cross_barrier(name: str) -> None:
    failures = [result[name] for result in semantics() if result[name]]
    assert failures == [], "\n".join(failures)


def test_exception_in_a_forward_pass__is_named_on_the_others() -> None:
    other, failed = run_job("failing", programs=PROGRAMS, how="raise")
    assert failed.status == 1
    assert "ArithmeticError: of the program" in failed.output
    assert_names(other.answer, "rank 1", "ended by ArithmeticError without hvd.shutdown()")


def test_killed_rank__is_named_on_the_others() -> None:
    other, _ = run_job("failing", programs=PROGRAMS, how="wait", kill=1)
    # Noticed first on the control channel or in the all-reduce that is in flight: the same facts either way.
    assert_names(other.answer, "the job has ended", "rank 1 at", "died: its connection ended without a goodbye")
