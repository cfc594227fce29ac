"""Asynchronous training by BytePS's API for TensorFlow, between real processes: sums, pace, rejections and failures."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import rank_jobs
from checks import assert_names
from rank_jobs import checks_of, table_test

PROGRAMS = Path(__file__).with_name("tf_asynchronous_programs.py")
LIMIT_SECONDS = 280.0  # importing TensorFlow and tracing take half a minute of CPU time in each process
pytestmark = pytest.mark.timeout(300)


run_job = partial(rank_jobs.run_job, programs=PROGRAMS, modules=("tensorflow", "keras"), limit_seconds=LIMIT_SECONDS)
test_semantics = table_test(checks_of(PROGRAMS), run_job)


def test_worker_that_ends_with_an_error__is_named_on_the_others() -> None:
    other, failed = run_job("failing", how="raise")
    assert failed.status == 1
    assert_names(other.answer, "asynchronous training cannot continue", "rank 1")


def test_killed_worker__is_named_on_the_others() -> None:
    other, _ = run_job("failing", how="wait", kill=1)
    assert_names(other.answer, "asynchronous training cannot continue", "rank 1")
