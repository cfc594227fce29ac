"""``mlt.tensorflow.byteps`` between real processes: a table of semantics, and the example as a job of BytePS."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import byteps_jobs
import pytest
import rank_jobs
import tf_byteps_programs
from rank_jobs import answers

PROGRAMS = Path(tf_byteps_programs.__file__)
EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "tensorflow" / "byteps_mnist.py"
LIMIT_SECONDS = 280.0  # importing TensorFlow and tracing take half a minute of CPU time in each process
pytestmark = pytest.mark.timeout(300)


@cache
def semantics() -> list[dict[str, str]]:
    """All checks in one job of two processes: importing TensorFlow takes seconds."""
    return answers(
        rank_jobs.run_job(
            "semantics",
            programs=PROGRAMS,
            modules=("tensorflow", "keras"),  # neither starts a thread when it is imported
            limit_seconds=LIMIT_SECONDS,
            checks=list(tf_byteps_programs.CHECKS),
        )
    )


@pytest.mark.parametrize("name", tf_byteps_programs.CHECKS)
def test_semantics(name: str) -> None:
    failures = [result[name] for result in semantics() if result[name]]
    assert failures == [], "\n".join(failures)


def test_example__trains_as_a_job_of_byteps_and_all_workers_agree() -> None:
    outputs = byteps_jobs.run(EXAMPLE, ["--epochs", "2", "--samples", "512"], limit_seconds=LIMIT_SECONDS)
    losses = [float(one) for one in re.findall(r"epoch \d: average loss ([\d.]+)", outputs[0])]
    assert len(losses) == 2
    assert losses[1] < losses[0] / 2
    assert "epoch" not in outputs[1]
