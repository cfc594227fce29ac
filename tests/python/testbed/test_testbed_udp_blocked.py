"""UDP that a firewall blocks while TCP passes, from the start or later: every rank's operations say so within seconds,
and what to open. A stopped process (SIGSTOP) is neither that nor dead."""

from __future__ import annotations

import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from socket import IPPROTO_TCP as TCP
from socket import IPPROTO_UDP as UDP

import pytest
from checks import assert_names, strike
from testbed_lab import needs_testbed
from testbed_ranks import running, say, tampering, texts_of

from mlt.testbed import Testbed

pytestmark = needs_testbed
pytest.importorskip("mlt._core")

# Calls a collective so many seconds after the ranks connected.
JOB = """
context = connect(connect_timeout=40, datapath="udp")
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

# Each line of standard input is a number of calls to make, with default times except that of the operation.
STEPS = """
context = connect(connect_timeout=40, datapath="udp")
try:
    with context:
        tensor = np.ones(100_000, np.float32)
        for line in sys.stdin:
            began = time.monotonic()
            for _ in range(int(line)):
                context.all_reduce(tensor, timeout=50)
            print("DONE", flush=True)
except mlt.MltError as error:
    print(f"FAILED {time.monotonic() - began:.2f} s after the call: {error}", flush=True)
"""


@contextmanager
def stepping(bed: Testbed, ranks: int) -> Iterator[list[subprocess.Popen[str]]]:
    """Ranks that have made a first call."""
    with running(bed, STEPS, ranks) as started:
        call(started, 1)
        assert [one.stdout.readline() for one in started] == ["DONE\n"] * ranks
        yield started


def call(ranks: list[subprocess.Popen[str]], count: int) -> None:
    for one in ranks:
        say(one, count)


def seconds(text: str) -> tuple[float, float]:
    after_connect, after_call = re.findall(r"([0-9.]+) s after", text)
    return float(after_connect), float(after_call)


def test_operation__names_the_direction_that_is_blocked_at_both_ranks(tmp_path: Path) -> None:
    # What leaves host1 over UDP is dropped.
    with Testbed(hosts=2, rate="200mbit") as bed, tampering(bed, "host1", tmp_path, drop=UDP):
        texts = texts_of(bed, JOB, 2, 0)
    for rank, text in enumerate(texts):
        assert_names(text, f"rank {rank}: ", "no datagram of rank 1 (10.77.0.2) arrived at rank 0 (UDP 10.77.0.1:")
        assert_names(text, "although TCP connects", "Let UDP pass to this port", "MLT_PATHS")
        assert "no datagram of rank 0" not in text
        assert seconds(text)[0] < 3.0  # 1.6 s on a quiet machine


def test_operation__that_comes_later_fails_at_once(tmp_path: Path) -> None:
    with Testbed(hosts=2, rate="200mbit") as bed, tampering(bed, "host1", tmp_path, drop=UDP):
        texts = texts_of(bed, JOB, 2, 4.0)
    for text in texts:
        assert_names(text, "no datagram of rank 1 (10.77.0.2) arrived at rank 0")
        assert seconds(text)[1] < 1.0


def test_operation__with_loss_of_a_tenth_both_ways_is_not_blocked() -> None:
    lossy = {f"host{host}": {"loss": "10%"} for host in range(4)}
    with Testbed(hosts=4, rate="200mbit", links=lossy) as bed:
        texts = texts_of(bed, JOB, 4, 2.5)
    assert [text.split()[:1] for text in texts] == [["DONE"]] * 4, texts


@pytest.mark.parametrize("host", ["host0", "host1"])
def test_operation__names_what_became_blocked_after_the_ranks_connected(host: str, tmp_path: Path) -> None:
    source, target = ("rank 0 (10.77.0.1)", "rank 1 (UDP 10.77.0.2:") if host == "host0" else (
        "rank 1 (10.77.0.2)", "rank 0 (UDP 10.77.0.1:"
    )  # fmt: skip
    with Testbed(hosts=2, rate="200mbit") as bed, stepping(bed, 2) as ranks, tampering(bed, host, tmp_path, drop=UDP):
        call(ranks, 1)
        for rank, one in enumerate(ranks):
            text = one.stdout.readline()
            assert_names(
                text, f"rank {rank}: ", f"no datagram of {source} arrived at {target}", "TCP connects", "MLT_PATHS"
            )
            (after_call,) = re.findall(r"([0-9.]+) s after", text)
            assert float(after_call) < 8.0  # 3.5 s on a quiet machine; the operation's limit is 50 s


def test_stopped_for_5_s__job_goes_on_with_default_times() -> None:
    with Testbed(hosts=2, rate="200mbit") as bed, stepping(bed, 2) as ranks:
        call(ranks[:1], 200)
        strike(ranks[1].pid)
        call(ranks[1:], 200)
        time.sleep(5.0)  # that is the subject
        ranks[1].send_signal(signal.SIGCONT)
        assert [one.stdout.readline() for one in ranks] == ["DONE\n"] * 2


def test_stopped_while_udp_is_blocked__has_no_verdict_before_it_runs_again(tmp_path: Path) -> None:
    with Testbed(hosts=2, rate="200mbit") as bed, stepping(bed, 2) as ranks:
        strike(ranks[1].pid)
        with tampering(bed, "host1", tmp_path, drop=UDP):
            call(ranks, 1)
            time.sleep(8.0)  # longer than the check of a rank that runs, and than peer_timeout
            assert ranks[0].poll() is None
            resumed = time.monotonic()
            ranks[1].send_signal(signal.SIGCONT)
            texts = [one.stdout.readline() for one in ranks]
            assert time.monotonic() - resumed < 12.0
        for rank, text in enumerate(texts):
            assert_names(text, f"rank {rank}: ", "no datagram of rank 1 (10.77.0.2) arrived at rank 0 (UDP 10.77.0.1:")
            (after_call,) = re.findall(r"([0-9.]+) s after", texts[0])
            assert float(after_call) > 8.0


@pytest.mark.parametrize("calls", [0, 3])
def test_tcp_that_delivers_nothing_for_8_s__job_goes_on_while_datagrams_pass(calls: int, tmp_path: Path) -> None:
    # Longer than peer_timeout. On a lossy network TCP's retransmission timeouts last as long.
    with Testbed(hosts=2, rate="200mbit") as bed, stepping(bed, 2) as ranks:
        (tmp_path / "0").mkdir()
        (tmp_path / "1").mkdir()
        with tampering(bed, "host0", tmp_path / "0", drop=TCP), tampering(bed, "host1", tmp_path / "1", drop=TCP):
            call(ranks, calls)
            time.sleep(8.0)  # that is the subject
        call(ranks, 3)
        assert [[one.stdout.readline() for one in ranks] for _ in range(2)] == [["DONE\n"] * 2] * 2
