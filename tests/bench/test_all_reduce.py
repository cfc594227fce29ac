"""All-reduce of two processes on loopback beside gloo: each round times both, so that they see the same machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import group
import numpy as np
import pytest
from test_transfer import save

from mlt._shared.ports import free_port


@pytest.mark.parametrize(("size", "rounds"), [(25 << 20, 40), (1 << 20, 300)])
def test_all_reduce(benchmark: Any, size: int, rounds: int) -> None:
    warm_up = 5
    port = str(free_port())
    env = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "MLT_RENDEZVOUS_PORT": str(free_port())}
    env |= {"WORLD_SIZE": "2", "GLOO_SOCKET_IFNAME": "lo", "MLT_JOB": f"bench-{port}", "OMP_NUM_THREADS": "1"}
    os.environ.update(env | {"RANK": "0"})
    command = [sys.executable, str(Path(group.__file__)), str(size), str(rounds + warm_up)]
    child = subprocess.Popen(command, env={**os.environ, "RANK": "1"})
    own = group.Group(0, size)
    gloo_times: list[float] = []
    mlt_times: list[float] = []
    for _ in range(warm_up):
        own.once("gloo"), own.once("mlt")
    benchmark.pedantic(
        lambda: mlt_times.append(own.once("mlt")), setup=lambda: gloo_times.append(own.once("gloo")), rounds=rounds
    )
    own.close()
    assert child.wait(timeout=30) == 0
    # Bus bandwidth: 2 (n - 1) / n times the size over the time, which is the size over the time with two ranks.
    ours, theirs = (size / float(np.median(times)) for times in (mlt_times, gloo_times))
    figures = {
        "bytes": size,
        "rounds": rounds,
        "mlt_bus_gbit_per_second": ours * 8e-9,
        "gloo_bus_gbit_per_second": theirs * 8e-9,
        "mlt_over_gloo": ours / theirs,
        "mlt_best_over_gloo_best": min(gloo_times) / min(mlt_times),
    }
    benchmark.extra_info.update(figures)
    save(f"all_reduce_{size >> 20}MB", figures)
    assert len(mlt_times) == len(gloo_times) == rounds
