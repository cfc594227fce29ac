"""``tools/push_pull_speed.py``: equation 6, and a row of its table with real ranks."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from loading import load

from mlt.testbed import make
from mlt.testbed.requirements import problems

TOOL = Path(__file__).resolve().parents[3] / "tools" / "push_pull_speed.py"
MISSING = "needs root" if os.geteuid() != 0 else "; ".join(problems(make({"hosts": 2})))


def test_least_seconds__are_those_of_equation_6(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(TOOL.parent))
    speed = load(TOOL)
    # A ring's, as with a service beside each worker; the tensor once, with as many spare hosts.
    assert speed.least_seconds(4, 0, 1, 1.0) == pytest.approx(1.5)
    assert speed.least_seconds(4, 4, 1, 1.0) == pytest.approx(1)
    assert speed.least_seconds(8, 4, 8 << 20, 1.25e9) == pytest.approx(112 / 88 * (8 << 20) / 1.25e9)


@pytest.mark.skipif(bool(MISSING), reason=MISSING or "-")
def test_main__measures_gloo_ring_and_push_pull_in_one_run() -> None:
    pytest.importorskip("torch")
    words = ["--workers", "2", "--spare", "1", "--rounds", "1", "--size", "512KiB"]
    done = subprocess.run([sys.executable, TOOL, *words], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    times = r"\| [\d.]+ "
    ratio = r"\| [\d.]+ \([\d.]+\) "
    assert re.search(rf"^\| 2 \| 1 {3 * times}{2 * ratio}\|$", done.stdout, re.MULTILINE), done.stdout
