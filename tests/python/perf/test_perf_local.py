"""Real runs on this host: every pattern, small, beside other transports; consistent figures and complete cleanup."""

from __future__ import annotations

import importlib.util
import os
import signal
from pathlib import Path

import pytest
from checks import assert_names, until
from perf_runs import agents_of, perf, read, running

from mlt.collectives import ALGORITHMS
from mlt.perf.report import SCHEMA

needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
GBIT = 1e9


@pytest.mark.parametrize(
    ("pattern", "ranks", "factor"),
    [("p2p", 2, 1.0), ("incast", 3, 2.0), ("alltoall", 3, 2 / 3), ("allreduce", 3, 4 / 3)],
)
def test_local__measures_every_pattern(tmp_path: Path, pattern: str, ranks: int, factor: float) -> None:
    out = tmp_path / "out.json"
    done = perf(
        "--local", "--pattern", pattern, "--ranks", str(ranks), "--size", "48KB", "--rounds", "12", "--turns", "3",
        "--compare", "tcp", "--loss-bound", "0,0.1", "--json", str(out),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = read(out)
    assert found["schema"] == SCHEMA
    assert [row["label"] for row in found["results"]] == ["mlt p=0", "mlt p=0.1", "tcp"]
    assert all(row["label"] in done.stdout for row in found["results"])
    assert_names(done.stdout, "p99 needs 100", "p99.9 needs 1,000")
    for row in found["results"]:
        assert row["rounds"] == len(row["samples_seconds"]) == 12
        p50 = row["seconds"]["p50"]
        assert row["goodput_bits_per_second"] == pytest.approx(8 * 48_000 * factor / p50)
        assert row["seconds"]["p99"] is None
        assert row["cpu_seconds_per_gigabyte"] > 0
    exact = found["results"][0]
    assert exact["verified_missing_fraction"] == exact["missing_fraction"] == 0
    # Whatever rank sends, another receives: nothing was dropped on purpose.
    counted = exact["counters"]
    assert counted["data_packets_received"] == counted["data_packets_sent"] > 0


def test_local__loss_is_seen_repaired_and_kept_within_the_bound(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    done = perf(
        "--local", "--size", "512KiB", "--rounds", "20", "--loss-bound", "0,0.2", "--segment-bytes", "1440",
        "--faults", "drop=0.05,seed=3", "--json", str(out),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    exact, bounded = read(out)["results"]
    assert 0.02 < exact["loss_fraction"] < 0.1
    assert exact["repairs"] > 50
    assert exact["missing_fraction"] == 0
    assert 0 < bounded["missing_fraction"] <= 0.2
    assert bounded["repairs"] < exact["repairs"]


def test_local__bare_loop_and_rate(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    done = perf(
        "--local", "--size", "500KB", "--rounds", "30", "--turns", "2", "--rate", "100mbit", "--compare", "raw-udp",
        "--json", str(out),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    ours, bare = read(out)["results"]
    for row in (ours, bare):
        # 15 rounds begin at 40 ms intervals; the last one ends when it is done.
        assert 0.06 * GBIT < row["achieved_bits_per_second"] < 0.115 * GBIT
    assert bare["repairs"] is None
    assert 0 <= bare["loss_fraction"] < 1


@needs_torch
@pytest.mark.parametrize(
    ("pattern", "factor"), [("broadcast", 1.0), ("reduce", 1.0), ("allgather", 2 / 3), ("reducescatter", 2 / 3)]
)
def test_local__measures_the_other_collectives_beside_gloo(tmp_path: Path, pattern: str, factor: float) -> None:
    out = tmp_path / "out.json"
    named = "direct,chain" if pattern in ("broadcast", "reduce") else "direct"
    done = perf(
        "--local", "--pattern", pattern, "--ranks", "3", "--size", "48KB,960KB", "--rounds", "6", "--turns", "2",
        "--compare", "gloo,tcp", "--algorithm", f"automatic,{named}", "--json", str(out),
    )  # fmt: skip
    assert done.returncode == 1
    assert_names(done.stderr, "tcp does not know the pattern", pattern)
    done = perf(
        "--local", "--pattern", pattern, "--ranks", "3", "--size", "48KB,960KB", "--rounds", "6", "--turns", "2",
        "--compare", "gloo", "--algorithm", f"automatic,{named}", "--json", str(out),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = read(out)["results"]
    ours = ["mlt p=0", *(f"mlt p=0 {one}" for one in named.split(","))]
    assert [row["label"] for row in rows] == [*ours, "gloo"] * 2
    for row in rows:
        size = row["bytes"]
        assert row["goodput_bits_per_second"] == pytest.approx(8 * size * factor / row["seconds"]["p50"])
        assert row["verified_missing_fraction"] == 0


@needs_torch
def test_local__all_compares_with_what_is_there_and_names_the_rest(tmp_path: Path) -> None:
    out, plot = tmp_path / "out.json", tmp_path / "out.png"
    done = perf(
        "--local", "--ranks", "3", "--pattern", "allreduce", "--size", "8KB,64KB", "--rounds", "5", "--compare", "all",
        "--json", str(out), "--plot", str(plot),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = read(out)
    ran = {row["transport"] for row in found["results"]}
    skipped = {one["transport"]: one["why"] for one in found["skipped"]}
    assert {"mlt", "tcp", "gloo"} <= ran
    assert_names(skipped["raw-udp"], "raw-udp", "2 ranks", "3")
    assert ran | set(skipped) == {"mlt", "tcp", "gloo", "mpi", "mpi-shm", "raw-udp"}
    assert all(f"not compared with {peer}" in done.stdout for peer in skipped)
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_local__has_a_row_for_each_algorithm(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    done = perf(
        "--local", "--ranks", "3", "--pattern", "allreduce", "--size", "8KB", "--rounds", "3",
        "--algorithm", "automatic,direct,central,ring,halving", "--json", str(out),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = [(row["label"], row["algorithm"]) for row in read(out)["results"]]
    named = [one for one in ALGORITHMS if one != "two-level"]  # which needs several hosts
    assert found == [("mlt p=0", "automatic"), *((f"mlt p=0 {one}", one) for one in named)]
    assert_names(done.stdout, *(f"mlt p=0 {one}" for one in named))


def test_local__a_transport_that_is_not_installed_fails_by_name_only(tmp_path: Path) -> None:
    # Without a PATH there is no mpirun.
    done = perf("--local", "--size", "8KB", "--rounds", "2", "--compare", "mpi", PATH=str(tmp_path))
    assert done.returncode == 1
    assert_names(done.stderr, "mpirun", "apt-get install openmpi-bin")
    done = perf("--local", "--size", "8KB", "--rounds", "2", "--compare", "tcp,all", PATH=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert_names(done.stdout, "not compared with mpi", "mpirun")


def test_local__a_rank_that_dies_is_named_and_nothing_is_left() -> None:
    with running("--local", "--size", "1MiB", "--rounds", "100000", "--compare", "tcp") as process:
        jobs = until(lambda: len(found := agents_of(process.pid)) == 4 and found)
        victim = next(number for number, job in jobs.items() if (job["rank"], job["transport"]) == (1, "mlt"))
        until(lambda: _cpu_ticks(victim) > 60)  # it is past its start
        os.kill(victim, signal.SIGKILL)
        _, error = process.communicate(timeout=30)
        assert process.returncode == 1
        assert_names(error, "rank 1", "SIGKILL")
        assert "Traceback" not in error
        assert not any(Path(f"/proc/{number}").exists() for number in jobs)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_local__interrupt_leaves_no_process(number: signal.Signals) -> None:
    with running("--local", "--pattern", "allreduce", "--size", "1MiB", "--rounds", "100000") as process:
        jobs = until(lambda: len(found := agents_of(process.pid)) == 2 and found)
        until(lambda: all(_cpu_ticks(agent) > 60 for agent in jobs))
        process.send_signal(number)
        _, error = process.communicate(timeout=20)
        assert process.returncode == 128 + number
        assert "interrupted" in error
        assert not any(Path(f"/proc/{agent}").exists() for agent in jobs)


def test_local__a_parent_that_was_killed_leaves_neither_process_nor_file(tmp_path: Path) -> None:
    with running("--local", "--size", "1MiB", "--rounds", "100000", TMPDIR=str(tmp_path)) as process:
        jobs = until(lambda: len(found := agents_of(process.pid)) == 2 and found)
        until(lambda: all(_cpu_ticks(agent) > 60 for agent in jobs))
        process.kill()
        process.wait(10)
        until(lambda: not any(Path(f"/proc/{agent}/exe").exists() for agent in jobs))
    assert not list(tmp_path.iterdir())


def _cpu_ticks(process: int) -> int:
    fields = Path(f"/proc/{process}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])
