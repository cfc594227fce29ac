"""A rank that leaves while its goodbye does not arrive: it waits, for a limited time, and is not taken for dead."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from checks import assert_names, strike
from testbed_lab import needs_testbed
from testbed_ranks import running, say, tampering

from mlt.testbed import Testbed

pytestmark = needs_testbed
pytest.importorskip("mlt._core")

# Rank 1 waits for what rank 0 never sends. Rank 0 leaves when it is told to, and says how long that took.
JOB = """
context = connect(connect_timeout=40, peer_timeout=float(sys.argv[3]))
context.barrier(timeout=30)
print("UP", flush=True)
if rank == 0:
    sys.stdin.readline()
    began = time.monotonic()
    context.close()
    print(time.monotonic() - began, flush=True)
else:
    with context:
        try:
            context.post_recv(np.empty(1000, np.float32), 0.0, from_=0, tag=1, timeout=60).wait()
        except mlt.PeerFailedError as error:
            print(error, flush=True)
"""


@contextmanager
def couple(bed: Testbed, peer_timeout: float = 30) -> Iterator[list[subprocess.Popen[str]]]:
    """Two ranks that are up."""
    with running(bed, JOB, 2, peer_timeout) as started:
        assert [one.stdout.readline() for one in started] == ["UP\n"] * 2
        yield started


def test_goodbye__that_is_lost_for_seconds_still_arrives(tmp_path: Path) -> None:
    with Testbed(hosts=2, rate="200mbit") as bed, couple(bed) as (leaver, other):
        # TCP repeats it after about 0.2, 0.4, 0.9, 1.7, 3.4 and 6.8 s. The other rank's heartbeats arrive.
        with tampering(bed, "host0", tmp_path, drop=socket.IPPROTO_TCP):
            say(leaver)
            time.sleep(2.0)  # that is the subject
        assert_names(other.stdout.readline(), "rank 0", "left the job")


def test_goodbye__to_a_host_that_is_gone_times_out(tmp_path: Path) -> None:
    with (
        Testbed(hosts=2, rate="200mbit") as bed,
        couple(bed) as (leaver, _),
        tampering(bed, "host0", tmp_path, drop=socket.IPPROTO_TCP),
    ):
        say(leaver)
        assert 6.5 < float(leaver.stdout.readline()) < 12.0  # 7 s on a quiet machine


def test_goodbye__to_a_stopped_process_is_not_waited_for_once_its_host_has_it() -> None:
    with Testbed(hosts=2, rate="200mbit") as bed, couple(bed) as (leaver, other):
        strike(other.pid)
        say(leaver)
        assert float(leaver.stdout.readline()) < 4.0  # 1 s on a quiet machine


def test_silence__of_a_connection_whose_heartbeats_are_lost_for_2_s_is_no_death(tmp_path: Path) -> None:
    with Testbed(hosts=2, rate="200mbit") as bed, couple(bed, peer_timeout=3.7) as (leaver, other):
        # The first heartbeats that are lost leave within 0.5 s. TCP that doubled its waits would repeat them after 0.2,
        # 0.4, 0.9, 1.7 and 3.4 s, which is 3.9 s after the last that arrived.
        with (
            tampering(bed, "host0", tmp_path, drop=socket.IPPROTO_TCP),
            tampering(bed, "host1", tmp_path, drop=socket.IPPROTO_TCP),
        ):
            time.sleep(2.35)  # that is the subject
        time.sleep(3.5)  # a silence of 3.7 s would have been seen by then
        say(leaver)
        assert_names(other.stdout.readline(), "rank 0", "left the job")
