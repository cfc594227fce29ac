"""A hostile host beside a job, in short: `make attacks` is the long form and writes docs/results/attacks.md."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from testbed_lab import ROOT, needs_testbed

pytestmark = [needs_testbed, pytest.mark.timeout(240)]
pytest.importorskip("mlt._core")

SECONDS = "0.7"


GROUPS = (
    "ask-control,ask-rendezvous,join-with-a-guess,bad-lines",
    "replay-streams,replay-datagrams,forge-datagrams",
    "hold,pour,churn,flood-16,flood-1472",
    "icmp,resets",
)


@pytest.fixture(scope="module")
def report_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], list[dict[str, Any]]]:
    """The report of `tools/attacks` for these attacks; each group runs once."""

    @functools.cache
    def run(names: str) -> list[dict[str, Any]]:
        out = tmp_path_factory.mktemp("attacks") / "report.json"
        tool = [sys.executable, str(ROOT / "tools" / "attacks")]
        words = [*tool, "--only", names, "--seconds", SECONDS, "--json", str(out)]
        done = subprocess.run(words, capture_output=True, text=True, timeout=200, check=False)
        assert out.exists(), done.stderr
        return list(json.loads(out.read_text()))

    return run


@pytest.mark.parametrize("names", GROUPS)
def test_attacks__get_nothing_in_and_nothing_out(names: str, report_of: Callable[[str], list[dict[str, Any]]]) -> None:
    report = report_of(names)
    assert {one["name"] for one in report} == {*names.split(","), "none"}
    for one in report:
        assert one["faults"] == [], one
        assert one["tried"] > 0 or one["name"] == "none"
        # Each met what it aims at: an attack that is turned away before that proves nothing.
        assert one["name"] == "none" or (one["reached"] and all(one["reached"].values())), one
        if one["when"] == "running":
            assert one["under"] is not None


@pytest.mark.parametrize(("name", "counter"), [("forge-datagrams", "drop_bad_cookie"), ("churn", "control_")])
def test_attacks__leave_a_trace_in_the_counters(
    name: str, counter: str, report_of: Callable[[str], list[dict[str, Any]]]
) -> None:
    group = next(names for names in GROUPS if name in names.split(","))
    moved = next(one["moved"] for one in report_of(group) if one["name"] == name and one["when"] == "running")
    assert any(key.startswith(counter) and count > 0 for key, count in moved.items()), moved
