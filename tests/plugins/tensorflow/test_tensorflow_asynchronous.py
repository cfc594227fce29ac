"""Asynchronous training by BytePS's API for TensorFlow, between real processes: sums, pace, rejections and failures."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import rank_jobs
from rank_jobs import checks_of, failing_tests, table_test

PROGRAMS = Path(__file__).with_name("tf_asynchronous_programs.py")
LIMIT_SECONDS = 280.0  # importing TensorFlow and tracing take half a minute of CPU time in each process
pytestmark = pytest.mark.timeout(300)


run_job = partial(rank_jobs.run_job, programs=PROGRAMS, modules=("tensorflow", "keras"), limit_seconds=LIMIT_SECONDS)
test_semantics = table_test(checks_of(PROGRAMS), run_job)
test_worker_that_ends_with_an_error__is_named, test_killed_worker__is_named = failing_tests(run_job)
