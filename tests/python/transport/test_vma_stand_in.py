"""A job whose ranks run under LD_PRELOAD, as with libvma: here the stand-in of the C++ tests, over loopback."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from checks import assert_names
from rank_jobs import ends_of

from mlt._shared.ports import free_port

pytest.importorskip("mlt._core")

SOURCE = Path(__file__).resolve().parents[2] / "support" / "vma_stand_in.cc"
JOB = """
import json, os
import mlt, numpy as np
with mlt.Context() as context:
    other = 1 - context.rank
    got = np.zeros(1_000_003, np.uint8)
    pending = [context.post_recv(got, from_=other, tag=1)]
    pending.append(context.post_send(np.full(1_000_003, context.rank + 1, np.uint8), to=other, tag=1))
    for operation in pending:
        context.wait(operation, timeout=60)
    print(json.dumps({"right": bool((got == other + 1).all()), "counters": context.counters()}))
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler for the stand-in")
    out = tmp_path_factory.mktemp("vma") / "libvma_stand_in.so"
    subprocess.run([compiler, "-std=c++20", "-O1", "-shared", "-fPIC", str(SOURCE), "-o", str(out), "-ldl"], check=True)
    return out


def run(library: Path, **env: str) -> list[tuple[int, str, str]]:
    """Both ranks, to their end: (exit code, output, errors) each."""
    common = {
        **os.environ,
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MLT_RENDEZVOUS_PORT": str(free_port()),
        "LD_PRELOAD": str(library),
        **env,
    }
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", JOB],
            env={**common, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]
    return ends_of(ranks, 90)


def test_job__receives_without_a_copy_under_the_stand_in(library: Path) -> None:
    for code, output, errors in run(library, MLT_DATAPATH=""):
        assert code == 0, errors
        said = json.loads(output)
        assert said["right"]
        counters = said["counters"]
        assert counters["vma_zero_copy_available"] == 1
        assert counters["vma_zero_copy_received"] >= 1_000_003 // 8_960
        assert counters["vma_receive_failed"] == counters["vma_mark_failed"] == 0
        # Every datagram left by itself: a run of several in one call would have been one large fragmented packet.
        assert counters["udp_datagrams_sent"] >= 1_000_003 // 8_960


def test_job__copies_where_the_extra_interface_is_missing(library: Path) -> None:
    for code, output, errors in run(library, MLT_DATAPATH="vma", VMA_STAND_IN_EXTRA="0"):
        assert code == 0, errors
        said = json.loads(output)
        assert said["right"]
        assert said["counters"]["vma_zero_copy_available"] == said["counters"]["vma_zero_copy_received"] == 0
        assert said["counters"]["udp_runs_received"] > 0


def test_job__is_told_that_plain_udp_is_not_to_be_had_there(library: Path) -> None:
    for code, _, errors in run(library, MLT_DATAPATH="udp"):
        assert code != 0
        assert_names(errors, "'udp'", "libvma")
