"""Goodput and latency of one transfer between two processes on loopback, beside gloo and a bare UDP loop.

Every round times each peer once, one after another, so that all see the same machine; figures are medians, and the
claim is the ratio. `make bench` builds the C++ programs that this runs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import peer
import pytest

from mlt._shared.ports import free_port

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
PROGRAMS = Path(os.environ.get("MLT_BENCH_PROGRAMS", ROOT / "build" / "perf"))
REPORT = ROOT / "bench-report"


class Pair:
    """This process as rank 0 and a child as rank 1."""

    def __init__(self, kind: str, size: int, rounds: int) -> None:
        port = str(free_port())
        env = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "MLT_RENDEZVOUS_PORT": str(free_port())}
        env |= {"WORLD_SIZE": "2", "GLOO_SOCKET_IFNAME": "lo", "MLT_JOB": f"bench-{port}"}
        os.environ.update(env | {"RANK": "0"})
        command = [sys.executable, str(HERE / "peer.py"), kind, str(size), str(rounds)]
        self.child = subprocess.Popen(command, env={**os.environ, "RANK": "1", "OMP_NUM_THREADS": "1"})
        self.once, self._close = peer.sender(kind, size)

    def close(self) -> None:
        self._close()
        assert self.child.wait(timeout=30) == 0


class RawUdp:
    """The bare UDP_SEGMENT loop: one line in, goodput and arrived fraction out."""

    def __init__(self, size: int) -> None:
        program = PROGRAMS / "mlt_bench_raw_udp"
        if not program.exists():
            pytest.skip(f"{program} is not built: run `make bench`")
        self.process = subprocess.Popen(
            [str(program), str(size)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def once(self) -> tuple[float, float]:
        """Return (payload bytes per second that arrived, fraction that arrived)."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        goodput, arrived = self.process.stdout.readline().split()
        return float(goodput), float(arrived)

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait(timeout=10) == 0


def save(name: str, figures: dict[str, Any]) -> None:
    REPORT.mkdir(exist_ok=True)
    (REPORT / f"{name}.json").write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    print(f"\n{name}: " + ", ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in figures.items()))


def test_goodput_64_megabytes(benchmark: Any) -> None:
    size, rounds, warm_up = 64 << 20, 15, 3
    mlt, gloo = Pair("mlt", size, rounds + warm_up), Pair("gloo", size, rounds + warm_up)
    untagged = Pair("mlt-untagged", size, rounds + warm_up)
    raw = RawUdp(size)
    untagged_times: list[float] = []
    gloo_times: list[float] = []
    raw_goodput: list[float] = []
    raw_arrived: list[float] = []
    mlt_times: list[float] = []
    for _ in range(warm_up):
        mlt.once(), gloo.once(), untagged.once(), raw.once()

    def others() -> None:
        gloo_times.append(gloo.once())
        untagged_times.append(untagged.once())
        goodput, arrived = raw.once()
        raw_goodput.append(goodput)
        raw_arrived.append(arrived)

    benchmark.pedantic(lambda: mlt_times.append(mlt.once()), setup=others, rounds=rounds)
    mlt.close(), gloo.close(), untagged.close(), raw.close()
    ours, theirs, ceiling = (
        size / float(np.median(mlt_times)),
        size / float(np.median(gloo_times)),
        float(np.median(raw_goodput)),
    )
    figures = {
        "bytes": size,
        "rounds": rounds,
        "mlt_gbit_per_second": ours * 8e-9,
        "gloo_gbit_per_second": theirs * 8e-9,
        "bare_udp_loop_gbit_per_second": ceiling * 8e-9,
        "bare_udp_loop_fraction_arrived": float(np.median(raw_arrived)),
        "mlt_untagged_gbit_per_second": size / float(np.median(untagged_times)) * 8e-9,
        "mlt_over_gloo": ours / theirs,
        "mlt_untagged_over_gloo": size / float(np.median(untagged_times)) / theirs,
        "mlt_over_bare_udp_loop": ours / ceiling,
    }
    benchmark.extra_info.update(figures)
    save("goodput_64MB", figures)
    assert len(mlt_times) == len(gloo_times) == rounds


@pytest.mark.parametrize("size", [4 << 10, 64 << 10])
def test_latency(benchmark: Any, size: int) -> None:
    rounds, warm_up = 2000, 50
    mlt, gloo = Pair("mlt", size, rounds + warm_up), Pair("gloo", size, rounds + warm_up)
    for _ in range(warm_up):
        mlt.once(), gloo.once()
    mlt_times: list[float] = []
    gloo_times: list[float] = []
    benchmark.pedantic(
        lambda: mlt_times.append(mlt.once()), setup=lambda: gloo_times.append(gloo.once()), rounds=rounds
    )
    mlt.close(), gloo.close()
    p = {
        name: {q: float(np.percentile(times, q)) * 1e6 for q in (50, 99)}
        for name, times in (("mlt", mlt_times), ("gloo", gloo_times))
    }
    figures = {
        "bytes": size,
        "rounds": rounds,
        "mlt_p50_us": p["mlt"][50],
        "mlt_p99_us": p["mlt"][99],
        "gloo_p50_us": p["gloo"][50],
        "gloo_p99_us": p["gloo"][99],
        "mlt_p50_over_gloo": p["mlt"][50] / p["gloo"][50],
        "mlt_p99_over_gloo": p["mlt"][99] / p["gloo"][99],
    }
    benchmark.extra_info.update(figures)
    save(f"latency_{size >> 10}KB", figures)
    assert len(mlt_times) == rounds


@pytest.mark.parametrize("size", [64 << 10, 16 << 20])
def test_core_alone(benchmark: Any, size: int) -> None:
    """Two endpoints over the memory datapath in one thread; the median of the program's own timing."""
    program = PROGRAMS / "mlt_bench_core"
    if not program.exists():
        pytest.skip(f"{program} is not built: run `make bench`")
    runs: list[dict[str, Any]] = []

    def run() -> None:
        done = subprocess.run(
            [str(program), str(size), "200" if size < 1 << 20 else "20"], capture_output=True, text=True, check=True
        )
        runs.append(json.loads(done.stdout))

    benchmark.pedantic(run, rounds=5)
    figures = {
        "bytes": size,
        "ns_per_segment_both_sides": float(np.median([r["ns_per_segment"] for r in runs])),
        "send_ns_per_segment": float(np.median([r["send_ns_per_segment"] for r in runs])),
        "receive_ns_per_segment": float(np.median([r["receive_ns_per_segment"] for r in runs])),
        "segments_per_second": float(np.median([r["segments_per_second"] for r in runs])),
        "bytes_of_an_idle_peer": runs[0]["idle_peer_bytes"],
        "bytes_of_a_send": runs[0]["send_bytes"],
        "bytes_of_a_receive": runs[0]["receive_bytes"],
        "allocations_per_transfer": max(r["allocations_per_transfer"] for r in runs),
    }
    benchmark.extra_info.update(figures)
    save(f"core_{size >> 10}KB", figures)
    assert figures["allocations_per_transfer"] == 0


def test_simulator(benchmark: Any) -> None:
    """Virtual events and packet-link hops per second of one core: sixteen production endpoints on a leaf-spine."""
    program = PROGRAMS / "mlt_bench_sim"
    if not program.exists():
        pytest.skip(f"{program} is not built: run `make bench`")
    runs: list[dict[str, Any]] = []

    def run() -> None:
        done = subprocess.run([str(program), "1000000", "3"], capture_output=True, text=True, check=True)
        runs.append(json.loads(done.stdout))

    benchmark.pedantic(run, rounds=5)
    figures = {
        "packet_hops": runs[0]["packet_hops"],
        "packet_hops_per_second": float(np.median([r["packet_hops_per_second"] for r in runs])),
        "events_per_second": float(np.median([r["events_per_second"] for r in runs])),
    }
    benchmark.extra_info.update(figures)
    save("simulator", figures)
    assert len({r["events"] for r in runs}) == 1  # the same run every time, event for event
