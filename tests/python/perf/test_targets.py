"""``tools/targets``: what it makes of a result, met or missed, without measuring anything."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from loading import load_folder

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def targets() -> ModuleType:
    return load_folder(ROOT / "tools" / "targets", "mlt_targets")


@pytest.fixture(scope="module")
def verdicts(targets: ModuleType) -> ModuleType:
    return sys.modules["verdicts"]


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


def test_speed_ratio__is_the_median_of_turns(verdicts: ModuleType) -> None:
    # The machine is slower from turn to turn; in each of them ours is twice as fast, but for one.
    theirs = row("gloo", 8, [2.0, 4.0, 6.0, 8.0, 10.0])
    ours = row("mlt p=0", 8, [1.0, 2.0, 3.0, 4.0, 50.0])
    assert verdicts.speed_ratio(ours, theirs) == 2.0


@pytest.mark.parametrize(("seconds", "met"), [(0.9, [True, True]), (1.14, [False, True]), (1.4, [False, False])])
def test_one_way__both_ratios(targets: ModuleType, seconds: float, met: list[bool]) -> None:
    size = 64 << 20
    rows = [row("mlt p=0", size, [seconds] * 5), row("raw-udp", size, [1.0] * 5), row("gloo", size, [1.5] * 5)]
    found = targets.check_one_way(run_of(targets, "one-way"), {"results": rows})
    assert [one.met for one in found] == met


@pytest.mark.parametrize(("p99", "met"), [(6.2, True), (6.3, False)])
def test_ring__holds_p99_against_the_wire(targets: ModuleType, verdicts: ModuleType, p99: float, met: bool) -> None:
    samples = [0.004] * 98 + [p99 / 1e3] * 2
    rows = [row(f"mlt p={bound}", 64 << 10, samples) for bound in ("0", "0.1")]
    found = targets.check_ring(run_of(targets, "ring-64k-loss-1"), {"results": rows})
    assert [one.met for one in found] == [met, met]
    assert all("64 KiB" in one.case and "loss 1%" in one.case for one in found)
    large = [row(f"mlt p={bound}", 1 << 20, [seconds] * 100) for bound, seconds in (("0", 0.0765), ("0.1", 0.0775))]
    found = targets.check_ring(run_of(targets, "ring-1m-loss-1"), {"results": large})
    assert all("1024 KiB" in one.case for one in found)
    assert [one.met for one in found] == [False, True]  # p = 0.1 first; 1.15 times 66.9 ms is 77.0
    with pytest.raises(AssertionError):  # one of the two bounds was not measured
        targets.check_ring(run_of(targets, "ring-64k-loss-1"), {"results": rows[:1]})
    # 1.5 tensors, each 1,432 bytes of which take a frame of 1,514 and a tenth of an acknowledgement's of 94.
    assert verdicts.ring_limit_seconds(64 << 10) == pytest.approx(4.183e-3, rel=1e-3)


def test_all_reduce__in_time_or_as_fast_as_open_mpi(targets: ModuleType) -> None:
    times = {64: 21e-6, 64 << 10: 50e-6, 1 << 20: 300e-6, 25 << 20: 8e-3}
    mpi = {64: 1e-6, 64 << 10: 55e-6, 1 << 20: 290e-6, 25 << 20: 10.1e-3}
    rows = [row("mlt p=0", size, [took] * 5) for size, took in times.items()]
    rows += [row("mpi", size, [took] * 5) for size, took in mpi.items()]
    found = targets.check_all_reduce(run_of(targets, "all-reduce"), {"results": rows})
    # 64 B has its 20 us; 64 KiB may take as long as Open MPI; 1 MiB must be faster; 25 MiB within 0.8 of its time.
    assert [one.met for one in found] == [False, True, False, True]


def test_asleep__ahead_at_every_size(targets: ModuleType, verdicts: ModuleType) -> None:
    run = run_of(targets, "all-reduce-asleep")
    assert run.command.startswith("MLT_SPIN_US=0 mlt perf --local")
    rows = [row("mlt p=0", size, [1.0] * 5) for size in verdicts.SIZES]
    rows += [row("tcp", size, [0.9 if size == 64 else 1.1] * 5) for size in verdicts.SIZES]
    found = targets.check_asleep(run, {"results": rows})
    assert [one.met for one in found] == [False, True, True, True]


def test_push_pull__beside_one_way(targets: ModuleType) -> None:
    run = run_of(targets, "push-pull")
    assert run.command == "MLT_DATAPATH=udp python tests/bench/push_pull.py --bytes 4MB --keys 8 --rounds 50 --turns 5"
    (found,) = targets.check_push_pull(run, {"bytes_per_second": {"one_way": 2e9, "push_pull": 1.7e9}})
    assert (found.met, found.ratio) == (True, "0.85")


@pytest.mark.parametrize(
    ("shares", "met"),
    [(0.40, [True, None, True, True]), (0.46, [True, None, True, True]), (0.62, [False, None, True, False])],
)
def test_slow_host__beside_equal_links_and_the_others(
    targets: ModuleType, shares: float, met: list[bool | None]
) -> None:
    run = run_of(targets, "slow-host")
    assert run.command == "python tests/bench/slow_host.py --size 4MiB --rounds 60 --turns 5"
    result = {
        "equal": {"mlt p=0": 0.34, "tcp": 0.35, "gloo": 0.35},
        "slow": {"mlt p=0": 0.59, "tcp": 0.64, "gloo": 0.58},
        "shares": {"mlt p=0": shares, "tcp": 0.63, "gloo": 0.6},
    }
    found = targets.check_slow_host(run, result)
    assert [one.met for one in found] == met
    assert found[1].ratio == "1.74"


@pytest.mark.parametrize(("worst", "met"), [(0.11, True), (0.13, False), (0.31, False)])
def test_incast__sees_a_gap(targets: ModuleType, worst: float, met: bool) -> None:
    rows = [row("mlt p=0", 1 << 20, [0.1] * 98 + [worst] * 2)]
    (found,) = targets.check_incast(run_of(targets, "incast"), {"results": rows})
    assert found.met is met


def test_markdown__counts_met_targets_and_names_omitted_runs(targets: ModuleType) -> None:
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


def test_peers_that_are_missing_are_named_before_anything_is_measured(
    targets: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # no mpirun
    monkeypatch.setattr(sys, "argv", ["targets", "--output", str(tmp_path / "results")])
    with pytest.raises(SystemExit, match="nothing was measured: mpi: mpirun is not installed: apt-get install"):
        targets.main()
    assert not (tmp_path / "results").exists()
