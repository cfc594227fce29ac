"""``mlt.tensorflow`` between real processes: a table of semantics."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
import tf_programs
from rank_jobs import answers, run_job

PROGRAMS = Path(tf_programs.__file__)
EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "tensorflow" / "keras_digits.py"
LIMIT_SECONDS = 280.0  # importing TensorFlow and tracing take half a minute of CPU time in each process
pytestmark = pytest.mark.timeout(300)


@cache
def semantics() -> list[dict[str, str]]:
    """All checks in one job of two processes: importing TensorFlow takes seconds."""
    return answers(
        run_job("semantics", programs=PROGRAMS, limit_seconds=LIMIT_SECONDS, checks=list(tf_programs.CHECKS))
    )


@pytest.mark.parametrize("name", tf_programs.CHECKS)
def test_semantics(name: str) -> None:
    failures = [result[name] for result in semantics() if result[name]]
    assert failures == [], "\n".join(failures)


def test_example__trains_and_all_ranks_agree(tmp_path: Path) -> None:
    model = tmp_path / "model.keras"
    arguments = ["--epochs", "2", "--samples", "512", "--save", str(model)]
    done = subprocess.run(
        [sys.executable, "-m", "mlt", "launch", "-n", "2", sys.executable, str(EXAMPLE), *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    losses = [float(one) for one in re.findall(r"epoch \d: loss ([\d.]+)", done.stdout)]
    assert len(losses) == 2
    assert losses[1] < losses[0] / 2
    assert model.exists()
