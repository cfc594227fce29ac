"""Asynchronous training by BytePS's API for MXNet, between real processes: sums, pace, rejections and failures."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import rank_jobs
from rank_jobs import checks_of, failing_tests, table_test

PROGRAMS = Path(__file__).with_name("mx_asynchronous_programs.py")
pytestmark = pytest.mark.timeout(220)


run_job = partial(rank_jobs.run_job, programs=PROGRAMS, limit_seconds=200.0)
test_semantics = table_test(checks_of(PROGRAMS), run_job)
test_worker_that_ends_with_an_error__is_named, test_killed_worker__is_named = failing_tests(run_job)
