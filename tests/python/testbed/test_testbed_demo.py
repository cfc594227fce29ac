"""``mlt demo`` on a testbed, beside gloo."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from testbed_lab import needs_testbed

from mlt.demo import report

pytestmark = [needs_testbed, pytest.mark.timeout(300)]

COMMAND = [sys.executable, "-m", "mlt.cli.main", "demo"]
STEPS = 6
LIMIT_SECONDS = 270


@pytest.mark.slow
def test_demo__beside_gloo_on_a_testbed(tmp_path: Path) -> None:
    folder = tmp_path / "report"
    words = ["--network", "testbed", "--workers", "2", "--steps", str(STEPS), "--data", "mnist", "--loss", "0.03"]
    done = subprocess.run(
        [*COMMAND, *words, "--output", str(folder)], capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for text in ("gloo, no loss", "gloo, 3 %", "mlt, 3 %", "200 Mbit/s", "leaf0-spine1", "cubic"):
        assert text in " ".join(done.stdout.split()), text
    told = report.DemoReport.model_validate_json((folder / report.REPORT_FILE).read_text())
    runs = {run.name: run for run in told.runs}
    assert list(runs) == ["gloo-no-loss", "gloo-lossy", "no-loss", "reliable", "bounded"]
    for run in told.runs:
        assert run.replicas_identical
        assert run.gradient_bytes == STEPS * 2 * 4 * run.parameters
        assert (run.packets_dropped > 0) == (run.drop > 0), run.name
        assert set(run.counters) == {"worker-0", "worker-1"}  # no service
        assert (run.bytes_sent is None) == (run.backend == "gloo")
    assert runs["bounded"].segments_lost
    assert told.equals_no_loss["gloo-lossy"] == [True]
    assert told.equals_no_loss["reliable"] == [True]
    assert told.equals_no_loss["bounded"] == [False]
