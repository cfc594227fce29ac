"""``mlt.mxnet.byteps`` between real processes: a table of semantics, and the example as a job of BytePS."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import byteps_jobs
import mx_byteps_programs
import pytest
import rank_jobs
from rank_jobs import table_test

PROGRAMS = Path(mx_byteps_programs.__file__)
EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "mxnet" / "byteps_mnist.py"
LIMIT_SECONDS = 200.0
pytestmark = pytest.mark.timeout(220)


run_job = partial(rank_jobs.run_job, programs=PROGRAMS, limit_seconds=LIMIT_SECONDS)
test_semantics = table_test(mx_byteps_programs.CHECKS, run_job)


@pytest.mark.parametrize("options", [[], ["--fp16-pushpull"]], ids=["float32", "float16"])
def test_example__trains_as_a_job_of_byteps_and_all_workers_agree(options: list[str]) -> None:
    arguments = ["--epochs", "2", "--samples", "512", *options]
    outputs = byteps_jobs.run(EXAMPLE, arguments, limit_seconds=LIMIT_SECONDS)
    losses = [float(one) for one in re.findall(r"epoch \d: average loss ([\d.]+)", outputs[0])]
    assert len(losses) == 2
    assert losses[1] < losses[0] / 2
    assert "epoch" not in outputs[1]
