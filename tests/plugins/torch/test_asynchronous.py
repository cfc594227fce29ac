"""Asynchronous training by BytePS's API, between real processes: sums, pace, rejections and failures."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from checks import assert_names
from job import answers, run_job
from rank_jobs import checks_of

PROGRAMS = Path(__file__).with_name("asynchronous_programs.py")
CHECKS = checks_of(PROGRAMS)


@cache
def semantics() -> list[dict[str, str]]:
    return answers(run_job("semantics", programs=PROGRAMS, checks=CHECKS))


@pytest.mark.parametrize("name", CHECKS)
def test_semantics__of_asynchronous_training(name: str) -> None:
    failures = [result[name] for result in semantics() if result[name]]
    assert failures == [], "\n".join(failures)


def test_worker_that_ends_early__serves_the_others_until_they_end() -> None:
    steps = 50
    _, slow = answers(run_job("ended_early", programs=PROGRAMS, steps=steps))
    assert 0.5 * steps <= slow <= 0.5 * (steps + 1)


def test_worker_that_ends_with_an_error__is_named_on_the_others() -> None:
    other, failed = run_job("failing", programs=PROGRAMS, how="raise")
    assert failed.status == 1
    assert_names(other.answer, "asynchronous training cannot continue", "rank 1")


def test_killed_worker__is_named_on_the_others() -> None:
    other, _ = run_job("failing", programs=PROGRAMS, how="wait", kill=1)
    assert_names(other.answer, "asynchronous training cannot continue", "rank 1")
