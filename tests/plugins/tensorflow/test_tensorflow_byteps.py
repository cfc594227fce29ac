"""``mlt.tensorflow.byteps`` between real processes: a table of semantics, and the example as a job of BytePS."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import byteps_jobs
import pytest
import rank_jobs
import tf_byteps_programs
from rank_jobs import table_test

PROGRAMS = Path(tf_byteps_programs.__file__)
EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "tensorflow" / "byteps_mnist.py"
LIMIT_SECONDS = 280.0  # importing TensorFlow and tracing take half a minute of CPU time in each process
pytestmark = pytest.mark.timeout(300)


run_job = partial(rank_jobs.run_job, programs=PROGRAMS, modules=("tensorflow", "keras"), limit_seconds=LIMIT_SECONDS)
test_semantics = table_test(tf_byteps_programs.CHECKS, run_job)


def test_example__trains_as_a_job_of_byteps_and_all_workers_agree() -> None:
    outputs = byteps_jobs.run(EXAMPLE, ["--epochs", "2", "--samples", "512"], limit_seconds=LIMIT_SECONDS)
    losses = [float(one) for one in re.findall(r"epoch \d: average loss ([\d.]+)", outputs[0])]
    assert len(losses) == 2
    assert losses[1] < losses[0] / 2
    assert "epoch" not in outputs[1]
