"""``mlt perf`` between hosts of a testbed: losses that TCP waits for, and networks that are wrong or go away."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from checks import until
from perf_runs import PERF, read

from mlt.testbed import Testbed, make
from mlt.testbed.requirements import problems

MISSING = "needs root" if os.geteuid() != 0 else "; ".join(problems(make({"hosts": 2})))
pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING or "-")


def start(bed: Testbed, *words: str) -> list[subprocess.Popen[str]]:
    return [
        bed.popen(host, [*PERF, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for host in bed.hosts
    ]


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
def test_testbed__allreduce_beside_gloo_as_one_command(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    done = subprocess.run(
        [
            sys.executable, "-m", "mlt.cli.main", "testbed", "run", "--hosts", "3", "--rate", "200mbit", "--loss", "1%",
            "--", *PERF, "--pattern", "allreduce", "--size", "48KB", "--rounds", "20", "--loss-bound", "0,0.1",
            "--compare", "gloo", "--json", str(out),
        ],
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "[0]" in done.stdout
    assert "[1]" not in done.stdout
    exact, bounded, gloo = read(out)["results"]
    assert (exact["label"], bounded["label"], gloo["label"]) == ("mlt p=0", "mlt p=0.1", "gloo")
    for row in (exact, bounded):
        assert 0.001 < row["loss_fraction"] < 0.05
        # A ring's wire time is 2.56 ms here, a lower bound.
        assert row["seconds"]["p50"] > 0.0025
    assert len(json.loads(out.read_text())["hosts"]) == 3


def test_testbed__mtu_mismatch_is_named_by_every_rank() -> None:
    with Testbed(hosts=2, rate="200mbit", links={"host1": {"mtu": 1400}}) as bed:
        processes = start(bed, "--size", "48KB", "--rounds", "4")
        errors = [process.communicate(timeout=60)[1] for process in processes]
        assert [process.returncode for process in processes] == [1, 1]
        for error in errors:
            assert "MTU mismatch" in error
            assert "MTU 1400" in error
            assert "--segment-bytes 1328" in error
        processes = start(bed, "--size", "48KB", "--rounds", "4", "--segment-bytes", "1328")
        errors = [process.communicate(timeout=60)[1] for process in processes]
        assert [process.returncode for process in processes] == [0, 0], errors


def test_testbed__a_network_that_disappears_ends_both_sides() -> None:
    with Testbed(hosts=2, rate="200mbit") as bed:
        before = bed.link_counters()
        processes = start(bed, "--size", "1MiB", "--rounds", "100000")
        until(lambda: max(row.seen for row in bed.link_counters()) > max(row.seen for row in before) + 3_000)
        bed.break_link("host1")
        began = time.monotonic()
        errors = [process.communicate(timeout=60)[1] for process in processes]
        assert time.monotonic() - began < 40
        assert [process.returncode for process in processes] == [1, 1], errors
        assert "rank 1" in errors[0]
        for error in errors:
            assert "\nerror: " in f"\n{error}"
            assert "Traceback" not in error
