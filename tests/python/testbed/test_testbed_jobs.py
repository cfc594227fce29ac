"""Whole jobs across namespaces: mlt and TCP, with losses, on the interface they were told to use."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from testbed_lab import POLICY, ROOT, command, needs_testbed

from mlt.testbed import Testbed

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


PAPER = ROOT / "examples" / "switch" / "paper-testbed.yaml"
# One sender, a tensor of each of twelve layers, so that every class is used.
LAYERS = """
import mlt, numpy as np
LAYERS = 12
with mlt.Context() as context:
    for layer in range(LAYERS):
        tensor = np.ones(65536, np.float32)
        if context.rank:
            operation = context.post_send(tensor, to=0, tag=layer, layer=layer, layers=LAYERS)
        else:
            operation = context.post_recv(tensor, from_=1, tag=layer)
        context.wait(operation)
    print(context.dscp, flush=True)
"""
PACKETS_OF_A_LAYER = 262_144 // 1_432


def sent_by_class(policy: Path, *, told: bool = True) -> tuple[dict[str, int], str]:
    """Packets that passed the switch, by class, while ``LAYERS`` ran on two hosts, and what rank 0 printed."""
    env = {} if told else {"MLT_QOS_POLICY": ""}
    with Testbed(hosts=2, rate="200mbit", policy=str(policy)) as bed:
        jobs = [bed.popen(host, [sys.executable, "-c", LAYERS], env=env, stdout=subprocess.PIPE) for host in bed.hosts]
        outputs = [one.communicate(timeout=100)[0].decode().strip() for one in jobs]
        assert [one.returncode for one in jobs] == [0, 0]
        sent: dict[str, int] = {}
        for row in bed.counters():
            sent[row.name] = sent.get(row.name, 0) + row.sent
    return sent, outputs[0]


@pytest.mark.parametrize("policy", [POLICY, PAPER])
def test_policy__hosts_stamp_what_the_switch_knows(policy: Path) -> None:
    pytest.importorskip("mlt._core")
    sent, _ = sent_by_class(policy)
    for number in range(1, 7):
        assert sent[f"layers-{number}"] >= 2 * PACKETS_OF_A_LAYER, sent
    # Answers, probes and the control connection.
    assert sent["control"] > 0
    # What is left are the few packets of the rendezvous, before there is an engine.
    assert sent["default"] < 50, sent


def test_policy__that_the_hosts_are_not_told_leaves_all_in_the_default_class() -> None:
    pytest.importorskip("mlt._core")
    sent, dscp = sent_by_class(PAPER, told=False)
    assert dscp == "3, 7, 11, 15, 19, 23, 27; control 31"
    assert sent["default"] >= 12 * PACKETS_OF_A_LAYER
    assert all(sent[f"layers-{number}"] == 0 for number in range(1, 7)), sent


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
