"""Asynchronous training by BytePS's API, between real processes: sums, pace, rejections and failures."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from job import answers, run_job
from rank_jobs import checks_of, failing_tests, table_test

PROGRAMS = Path(__file__).with_name("asynchronous_programs.py")
run = partial(run_job, programs=PROGRAMS)
test_semantics = table_test(checks_of(PROGRAMS), run)
test_worker_that_ends_with_an_error__is_named, test_killed_worker__is_named = failing_tests(run)


def test_worker_that_ends_early__serves_the_others_until_they_end() -> None:
    steps = 50
    _, slow = answers(run("ended_early", steps=steps))
    assert 0.5 * steps <= slow <= 0.5 * (steps + 1)
