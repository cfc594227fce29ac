"""Whole jobs across namespaces: mlt and TCP, with losses, on the interface they were told to use."""

from __future__ import annotations

import re
import sys

import pytest
from testbed_lab import POLICY, ROOT, command, needs_testbed

pytestmark = needs_testbed

EXAMPLE = ROOT / "examples" / "testbed" / "all_to_one.py"
BOUND = 0.1
RESULT = re.compile(
    r"\[0\] (mlt|tcp): (\d+) rounds .* p50 ([\d.]+) ms, p99 ([\d.]+) ms, .* at most ([\d.]+)% of a tensor missing"
)
SUMMARY = re.compile(
    r"([\d,]+) packets sent, ([\d,]+) lost on links .*?([\d,]+) marked, ([\d,]+) dropped early, ([\d,]+) dropped"
)


def job(*words: str, options: tuple[str, ...] = ()) -> tuple[float, float, list[int]]:
    """Run the example on three hosts: p50 in ms, the largest missing fraction, and the network's own counts."""
    network = ["--hosts", "3", "--rate", "200mbit", "--loss", "1%", *options]
    done = command("run", *network, "--", sys.executable, str(EXAMPLE), "--rounds", "20", *words, timeout=110)
    assert done.returncode == 0, done.stdout + done.stderr
    result, summary = RESULT.search(done.stdout), SUMMARY.search(done.stderr)
    assert result, done.stdout
    assert summary, done.stderr
    return float(result[3]), float(result[5]) / 100, [int(text.replace(",", "")) for text in summary.groups()]


# Two tensors of 256 KiB through one port of 200 Mbit/s cannot take less.
WIRE_LIMIT_MS = 2 * 262_144 * 8 / 200e6 * 1000


@pytest.mark.parametrize("options", [(), ("--policy", str(POLICY))])
def test_mlt__finishes_within_its_bound_on_a_lossy_network(options: tuple[str, ...]) -> None:
    pytest.importorskip("mlt._core")
    p50, missing, (sent, lost, marked, early, _) = job(options=options)
    assert lost > 0.005 * sent
    assert 0 <= missing <= BOUND
    assert p50 > (1 - BOUND) * WIRE_LIMIT_MS
    # The policy's switch marks what is important and drops some of the rest; a plain one does neither.
    assert (marked > 0) == bool(options)
    assert options or early == 0


def test_tcp__finishes_whole_on_a_lossy_network() -> None:
    p50, missing, (sent, lost, *_) = job("--transport", "tcp", "--congestion", "cubic")
    assert lost > 0.005 * sent
    assert missing == 0
    assert p50 > WIRE_LIMIT_MS


GLOO = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
values = torch.full((1000,), float(dist.get_rank() + 1))
dist.all_reduce(values)
print(int(values[0]), flush=True)
dist.barrier()
dist.destroy_process_group()
"""


def test_gloo__meets_over_the_hosts_interface() -> None:
    pytest.importorskip("torch")
    done = command("run", "--hosts", "3", "--rate", "200mbit", "--", sys.executable, "-c", GLOO, timeout=110)
    assert done.returncode == 0, done.stdout + done.stderr
    assert {"[0] 6", "[1] 6", "[2] 6"} <= set(done.stdout.splitlines())


def test_topology_file__of_the_examples_runs() -> None:
    file = str(ROOT / "examples" / "testbed" / "leaf-spine.yaml")
    words = ["--transport", "tcp", "--rounds", "3", "--bytes", "65536"]
    done = command("run", "--topology", file, "--", sys.executable, str(EXAMPLE), *words, timeout=110)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "[0] tcp: 3 rounds of 65536 B from 3 hosts" in done.stdout
