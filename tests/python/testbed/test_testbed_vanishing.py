"""A network that disappears in the middle: every side says so in time, ends with an error, and leaves nothing."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest
from checks import assert_names, until
from testbed_lab import MLT, ROOT, command, leftovers, needs_testbed, python

from mlt.testbed import Testbed

pytestmark = needs_testbed
pytest.importorskip("mlt._core")

EXAMPLE = str(ROOT / "examples" / "testbed" / "all_to_one.py")
# mlt's own limit of silence, and time for a busy machine around it.
PEER_TIMEOUT, SLACK = 3.0, 5.0


def test_run__a_link_that_goes_down_ends_the_job_with_the_rank_that_is_gone() -> None:
    name = "vanishing"
    words = [*MLT, "run", "--hosts", "3", "--rate", "200mbit", "--name", name, "--"]
    job = [sys.executable, EXAMPLE, "--rounds", "100000"]
    with subprocess.Popen([*words, *job], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            until(lambda: sent(name) > 1_000)
            asked = time.monotonic()
            assert command("set", "host2", "--name", name, "--break").returncode == 0
            began = time.monotonic()
            out, err = process.communicate(timeout=60)
            seconds = time.monotonic() - began
        finally:
            process.kill()
    assert process.returncode == 1
    # Five seconds are the grace that the others have to end by themselves. A command takes half a second where nothing
    # else runs: it says how slow the machine is now.
    assert seconds < PEER_TIMEOUT + 5 + max(SLACK, 10 * (began - asked))
    assert "rank 0: receive of tag" in out + err
    assert "from rank 2" in out + err
    assert "PeerFailedError" in out + err
    assert "silent for 3 s" in out + err
    assert "(rank 0) ended with exit code 1" in err
    assert leftovers(name) == []


def sent(name: str) -> int:
    """Packets that the testbed's links have carried; 0 while there is none."""
    try:
        return sum(link.seen for link in Testbed.attach(name).link_counters())
    except Exception:  # it is being made, or its first state is half written
        return 0


def test_serve__that_loses_its_worker_names_it_and_fails() -> None:
    worker = """
import numpy as np, mlt
with mlt.Context(connect_timeout=30) as context:
    push, values = mlt.PushPull(context), np.ones(100_000, np.float32)
    push.push_pull(values, key=0).wait(30)
    print("pushed", flush=True)
    while True:
        push.push_pull(values, key=0).wait(30)
"""
    with Testbed(hosts=2, rate="200mbit") as bed:
        job = {"WORLD_SIZE": "1", "MLT_SERVICES": "1"}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        here = bed.popen("host0", python(worker), env=job, **pipes)
        serve = [sys.executable, "-m", "mlt.cli.main", "serve"]
        there = bed.popen("host1", serve, env=job, **pipes)
        assert here.stdout.readline() == "pushed\n"
        bed.break_link("host0")
        began = time.monotonic()
        outputs = [process.communicate(timeout=60) for process in (there, here)]
        assert time.monotonic() - began < PEER_TIMEOUT + 2 * SLACK
        assert there.returncode == 1
        assert "error: rank 0" in outputs[0][1]
        assert "Traceback" not in outputs[0][1]
        assert here.returncode == 1
        last = outputs[1][1].strip().splitlines()[-1]
        assert "PeerFailedError: " in last
        assert "rank 0: push-pull of key 0" in last, last
        assert "rank 1" in last
        assert "the network to it is down" in last


def test_doctor__an_examination_that_is_cut_off_is_a_problem() -> None:
    doctor = [sys.executable, "-m", "mlt.cli.main", "doctor"]
    # So lossy that the examination takes its time.
    with Testbed(hosts=2, rate="200mbit", links={"host0": {"loss_up": "50%"}}) as bed:
        serving = bed.popen("host1", [*doctor, "--serve", "--once"], stderr=subprocess.PIPE, text=True)
        serving.stderr.readline()
        asking = bed.popen("host0", [*doctor, bed.address("host1")], stdout=subprocess.PIPE, text=True)
        line = asking.stdout.readline()
        while not line.startswith("ok       UDP arrives"):
            assert line, "the examination ended early"
            line = asking.stdout.readline()
        bed.break_link("host0")
        out, _ = asking.communicate(timeout=60)
        assert asking.returncode == 1
        assert_names(out, "PROBLEM", "10.77.0.2 port 29600", "broke off")
        _, err = serving.communicate(timeout=60)
        assert "broke off" in err


def test_run__interrupted_while_its_network_is_broken_still_cleans_up() -> None:
    name = "broken"
    words = [*MLT, "run", "--hosts", "2", "--name", name, "--", "sleep", "60"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            until(lambda: command("set", "host1", "--name", name, "--break").returncode == 0)
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=30)
        finally:
            process.kill()
    assert process.returncode == 143
    assert leftovers(name) == []
