"""UDP that a firewall blocks while TCP passes: every rank's operations say so within seconds, and what to open."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from checks import assert_names
from test_testbed_doctor import tampering
from testbed_lab import needs_testbed

from mlt.testbed import Testbed

pytestmark = needs_testbed
pytest.importorskip("mlt._core")

JOB = """
import sys
import time
import numpy as np
import mlt
rank, size = int(sys.argv[1]), int(sys.argv[2])
context = mlt.Context(rank, size, master_addr="10.77.0.1", rendezvous_port=29001, connect_timeout=40,
                      datapath="udp", secret="a secret of this test only")
up = time.monotonic()
time.sleep(float(sys.argv[3]))
began = time.monotonic()
try:
    with context:
        tensor = np.ones(100_000, np.float32)
        for _ in range(3):
            context.all_reduce(tensor, timeout=30)
        print("DONE", context.counters()["stale_control"], flush=True)
except mlt.MltError as error:
    now = time.monotonic()
    print(f"FAILED {now - up:.2f} s after connect, {now - began:.2f} s after the call: {error}", flush=True)
"""


def texts_of(bed: Testbed, ranks: int, pause: float = 0.0) -> list[str]:
    """What the ranks print. They call a collective ``pause`` seconds after they connected."""
    started = [
        bed.popen(
            f"host{rank}",
            [sys.executable, "-c", JOB, str(rank), str(ranks), str(pause)],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(ranks)
    ]  # fmt: skip
    return [one.communicate(timeout=60)[0] for one in started]


def seconds(text: str) -> tuple[float, float]:
    after_connect, after_call = re.findall(r"([0-9.]+) s after", text)
    return float(after_connect), float(after_call)


def test_operation__names_the_direction_that_is_blocked_at_both_ranks(tmp_path: Path) -> None:
    # What leaves host1 over UDP is dropped.
    with Testbed(hosts=2, rate="200mbit") as bed, tampering(bed, "host1", tmp_path, drop=1):
        texts = texts_of(bed, 2)
    for rank, text in enumerate(texts):
        assert_names(text, f"rank {rank}: ", "no datagram of rank 1 (10.77.0.2) arrived at rank 0 (UDP 10.77.0.1:")
        assert_names(text, "although TCP connects", "Let UDP pass to this port", "MLT_PATHS")
        assert "no datagram of rank 0" not in text
        assert seconds(text)[0] < 3.0  # 1.6 s on a quiet machine


def test_operation__that_comes_later_fails_at_once(tmp_path: Path) -> None:
    with Testbed(hosts=2, rate="200mbit") as bed, tampering(bed, "host1", tmp_path, drop=1):
        texts = texts_of(bed, 2, pause=4.0)
    for text in texts:
        assert_names(text, "no datagram of rank 1 (10.77.0.2) arrived at rank 0")
        assert seconds(text)[1] < 1.0


def test_operation__with_loss_of_a_tenth_both_ways_is_not_blocked() -> None:
    lossy = {f"host{host}": {"loss": "10%"} for host in range(4)}
    with Testbed(hosts=4, rate="200mbit", links=lossy) as bed:
        texts = texts_of(bed, 4, pause=2.5)
    assert [text.split()[:1] for text in texts] == [["DONE"]] * 4, texts
