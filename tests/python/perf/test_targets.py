"""``tools/targets.py``: what it makes of a result, met or missed, without measuring anything."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def targets() -> ModuleType:
    spec = importlib.util.spec_from_file_location("mlt_targets", ROOT / "tools" / "targets.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def row(label: str, size: int, seconds: list[float], **more: Any) -> dict[str, Any]:
    ordered = sorted(seconds)
    quantiles = {"p50": ordered[len(ordered) // 2], "p99": ordered[int(0.99 * len(ordered))]}
    goodput = 8 * size / quantiles["p50"]
    return {
        "label": label, "bytes": size, "seconds": quantiles, "samples_seconds": seconds,
        "goodput_bits_per_second": goodput, **more,
    }  # fmt: skip


def run_of(targets: ModuleType, name: str) -> Any:
    return next(run for run in targets.runs() if run.name == name)


def test_speed_ratio__is_the_median_of_turns(targets: ModuleType) -> None:
    # The machine is slower from turn to turn; in each of them ours is twice as fast, but for one.
    theirs = row("gloo", 8, [2.0, 4.0, 6.0, 8.0, 10.0])
    ours = row("mlt p=0", 8, [1.0, 2.0, 3.0, 4.0, 50.0])
    assert targets.speed_ratio(ours, theirs) == 2.0


@pytest.mark.parametrize(("seconds", "met"), [(0.9, [True, True]), (1.2, [True, False]), (1.4, [False, False])])
def test_one_way__both_ratios(targets: ModuleType, seconds: float, met: list[bool]) -> None:
    size = 64 << 20
    rows = [row("mlt p=0", size, [seconds] * 5), row("raw-udp", size, [1.0] * 5), row("gloo", size, [1.5] * 5)]
    found = targets.judge_one_way(run_of(targets, "one-way"), {"results": rows})
    assert [one.met for one in found] == met


@pytest.mark.parametrize(("p99", "met"), [(5.8, [True, True]), (6.0, [False, True]), (10.0, [False, False])])
def test_ring__holds_p99_against_the_wire(targets: ModuleType, p99: float, met: list[bool]) -> None:
    samples = [0.004] * 98 + [p99 / 1e3] * 2
    rows = [row(f"mlt p={bound}", 64 << 10, samples) for bound in ("0", "0.1")]
    found = targets.judge_ring(run_of(targets, "ring-64k-loss-1"), {"results": rows})
    assert [one.met for one in found] == met
    assert all("64 KiB" in one.case and "loss 1%" in one.case for one in found)
    large = [row(f"mlt p={bound}", 1 << 20, [0.0725] * 100) for bound in ("0", "0.1")]
    found = targets.judge_ring(run_of(targets, "ring-1m-loss-1"), {"results": large})
    assert all("1024 KiB" in one.case for one in found)
    assert sorted(one.met for one in found) == [False, True]  # 1.15 and 1.3 times 62.9 ms
    with pytest.raises(AssertionError):  # one of the two bounds was not measured
        targets.judge_ring(run_of(targets, "ring-64k-loss-1"), {"results": rows[:1]})
    assert targets.ring_limit_seconds(64 << 10) == pytest.approx(3.93e-3, rel=1e-2)


@pytest.mark.parametrize(("worst", "met"), [(0.11, True), (0.13, False), (0.31, False)])
def test_incast__sees_a_gap(targets: ModuleType, worst: float, met: bool) -> None:
    rows = [row("mlt p=0", 1 << 20, [0.1] * 98 + [worst] * 2)]
    (found,) = targets.judge_incast(run_of(targets, "incast"), {"results": rows})
    assert found.met is met


def test_markdown__counts_what_was_met_and_names_what_was_left_out(targets: ModuleType) -> None:
    verdicts = [
        targets.Verdict("a", "1", "1.0", ">= 1", True, "one-way"),
        targets.Verdict("b", "1", "0.5", ">= 1", False, "one-way"),
        targets.Verdict("c", "1", "0.5", "", None, "one-way"),
    ]
    text = targets.markdown(verdicts, [run_of(targets, "one-way")], ["this (because)"], 0.1)
    assert "1 of 2 targets met" in text
    assert "| b | 1 | 0.5 | >= 1 | **no** | one-way |" in text
    assert "Not measured: this (because)." in text
    assert "`mlt perf --local --size 64MiB" in text
    assert "short of CPU" not in text
    assert "short of CPU" in targets.markdown(verdicts, [], [], 1_000.0)


def test_runs__are_commands_that_perf_takes(targets: ModuleType) -> None:
    names = [run.name for run in targets.runs()]
    assert len(set(names)) == len(names)
    for name in ("ring-64k-loss-0.1", "ring-1m-loss-0.1"):
        command = run_of(targets, name).command
        assert command.startswith("mlt testbed run --hosts 4 --rate 200mbit --buffer 256KiB --loss 0.1% -- mlt perf ")
