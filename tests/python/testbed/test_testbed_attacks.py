"""A hostile host beside a job, in short: `make attacks` is the long form and writes docs/results/attacks.md."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from testbed_lab import ROOT, needs_testbed

pytestmark = [needs_testbed, pytest.mark.timeout(240)]
pytest.importorskip("mlt._core")

SECONDS = "0.7"


def run(names: str, out: Path) -> list[dict[str, Any]]:
    """The report of `tools/attacks` for these attacks."""
    words = [sys.executable, str(ROOT / "tools" / "attacks"), "--only", names, "--seconds", SECONDS, "--json", str(out)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=200, check=False)
    assert out.exists(), done.stderr
    return list(json.loads(out.read_text()))


@pytest.mark.parametrize(
    "names",
    [
        "ask-control,ask-rendezvous,join-with-a-guess,bad-lines",
        "replay-streams,replay-datagrams,forge-datagrams",
        "hold,pour,churn,flood-16",
        "icmp,resets",
    ],
)
def test_attacks__get_nothing_in_and_nothing_out(names: str, tmp_path: Path) -> None:
    report = run(names, tmp_path / "report.json")
    assert {one["name"] for one in report} == {*names.split(","), "none"}
    for one in report:
        assert one["faults"] == [], one
        assert one["tried"] > 0 or one["name"] == "none"
        if one["when"] == "running":
            assert one["under"] is not None


def test_attacks__leave_a_trace_in_the_counters(tmp_path: Path) -> None:
    report = {one["name"]: one for one in run("forge-datagrams,churn", tmp_path / "report.json")}
    assert report["forge-datagrams"]["moved"].get("drop_bad_cookie", 0) > 0
    assert any(name.startswith("control_") for name in report["churn"]["moved"])
