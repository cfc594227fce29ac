"""A job over AF_XDP: past the kernel's stack, beside everything else on the interface, and gone with its process."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from checks import names, until
from testbed_lab import needs_testbed, python

import mlt
from mlt.testbed import Testbed

pytestmark = needs_testbed
pytest.importorskip("mlt._core")

# Both ranks send tensors of several sizes at once, forwards and backwards, and say what arrived and how.
JOB = """
import json, sys
import mlt, numpy as np
SIZES = [1, 7, 1_000, 65_536, 1_048_576, 3_000_001]
def content(rank, size):
    return np.random.default_rng(size * 2 + rank).integers(0, 256, size, dtype=np.uint8)
with mlt.Context() as context:
    other = 1 - context.rank
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    wrong = 0
    for turn in range(rounds):
        got = [np.zeros(size, np.uint8) for size in SIZES]
        pending = [context.post_recv(buffer, from_=other, tag=tag) for tag, buffer in enumerate(got)]
        sent = [content(context.rank, size) for size in SIZES]
        pending += [context.post_send(tensor, to=other, tag=tag) for tag, tensor in enumerate(sent)]
        for operation in pending:
            context.wait(operation, timeout=60)
        wrong += sum(not np.array_equal(a, content(other, size)) for a, size in zip(got, SIZES))
        if turn == 0:
            print("running", flush=True)
    print(json.dumps({"wrong": wrong, "counters": context.counters()}), flush=True)
"""


@pytest.fixture
def bed() -> Iterator[Testbed]:
    with Testbed(hosts=2, rate="1gbit") as made:
        yield made


def start(bed: Testbed, *words: str, **datapaths: str) -> list[Any]:
    """One rank on each host; ``datapaths`` by host, ``xdp`` where none is named."""
    ranks = []
    for host in bed.hosts:
        env = {"MLT_DATAPATH": datapaths.get(host, "xdp")}
        ranks.append(bed.popen(host, [sys.executable, "-c", JOB, *words], env=env, stdout=subprocess.PIPE, text=True))
    return ranks


def results(ranks: list[Any]) -> list[dict[str, int]]:
    """The counters of each rank, once both are done with every tensor right."""
    counters = []
    for rank in ranks:
        output = rank.communicate(timeout=100)[0].splitlines()
        assert rank.returncode == 0, output
        said = json.loads(output[-1])
        assert said["wrong"] == 0
        counters.append(said["counters"])
    return counters


def attached(bed: Testbed, host: str) -> bool:
    """Whether an XDP program hangs on the host's interface."""
    shown = bed.exec(host, ["ip", "-details", "link", "show", "mlt0"], timeout=10).stdout
    assert "mlt0" in shown
    return "prog/xdp" in shown


def test_job__tensors_arrive_intact_past_the_kernel(bed: Testbed) -> None:
    for counters in results(start(bed)):
        assert counters["xdp_runs_received"] > 3_000
        # The first runs, until the peer's Ethernet address is known.
        assert counters["xdp_kernel_runs_sent"] < counters["xdp_runs_sent"] / 10
        assert counters["xdp_receive_malformed"] == counters["xdp_receive_checksum"] == 0
        assert counters["xdp_send_invalid"] == 0
    assert not any(attached(bed, host) for host in bed.hosts)


def test_job__one_rank_by_af_xdp_and_one_by_kernel_udp(bed: Testbed) -> None:
    first, second = results(start(bed, **{bed.hosts[1]: "udp"}))
    assert first["xdp_runs_sent"] > 100
    assert first["xdp_runs_received"] > 100
    assert "xdp_runs_sent" not in second


def pings(bed: Testbed) -> bool:
    """Whether the second host answers an ICMP echo of the first."""
    body = b"\0\1\0\7" + b"mlt"
    request = b"\x08\0" + b"\0\0" + body + b"\0"
    total = sum(int.from_bytes(request[at : at + 2], "big") for at in range(0, len(request), 2))
    total = (total & 0xFFFF) + (total >> 16)
    request = request[:2] + (~total & 0xFFFF).to_bytes(2, "big") + request[4:]
    with bed.inside(bed.hosts[0], lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)) as raw:
        raw.settimeout(10)
        raw.sendto(request, (bed.address(bed.hosts[1]), 0))
        answer = raw.recv(200)[20:]  # behind the IP header
    return answer[0] == 0 and answer[4:].startswith(body)


def tcp_passes(bed: Testbed) -> bool:
    """A connection through the interface that carries the job, and bytes both ways."""
    listener = bed.inside(bed.hosts[0], lambda: socket.create_server((bed.address(bed.hosts[0]), 0)))
    with listener:
        to = (bed.address(bed.hosts[0]), listener.getsockname()[1])
        with bed.inside(bed.hosts[1], lambda: socket.create_connection(to, timeout=10)) as there:
            here, _ = listener.accept()
            with here:
                there.sendall(b"x" * 20_000)
                here.settimeout(10)
                got = bytearray()
                while len(got) < 20_000:
                    got += here.recv(20_000)
                here.sendall(b"done")
                return there.recv(4) == b"done"


def test_job__leaves_ping_and_tcp_alone_and_nothing_behind_when_killed(bed: Testbed) -> None:
    ranks = start(bed, "100000")
    try:
        for rank in ranks:
            assert rank.stdout.readline() == "running\n"
        assert all(attached(bed, host) for host in bed.hosts)
        # A second rank cannot have the same interface, and is told why.
        refused = bed.exec(
            bed.hosts[0],
            python(f"import mlt; mlt.Context(0, 1, host={bed.address(bed.hosts[0])!r})"),
            env={"MLT_DATAPATH": "xdp"},
            timeout=30,
        )
        assert refused.returncode != 0
        assert "EBUSY" in refused.stderr
        assert 'datapath="udp"' in refused.stderr
        assert pings(bed)
        assert tcp_passes(bed)
    finally:
        for rank in ranks:
            os.kill(rank.pid, signal.SIGKILL)
            rank.communicate()
    until(lambda: not any(attached(bed, host) for host in bed.hosts))
    # And the interface serves the next job.
    results(start(bed))


def test_context__names_the_privileges_that_af_xdp_lacks(bed: Testbed) -> None:
    host = bed.hosts[0]
    bare = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"]
    script = python(f"import mlt; mlt.Context(0, 1, host={bed.address(host)!r}, datapath='xdp')")
    done = bed.exec(host, [*bare, *script], timeout=30)
    assert done.returncode != 0
    for word in ("rank 0: cannot open an AF_XDP socket on mlt0: EPERM", "CAP_NET_RAW", "CAP_BPF", "MLT_DATAPATH=udp"):
        assert word in done.stderr
    assert not attached(bed, host)


@pytest.mark.parametrize(
    ("datapath", "words"),
    [
        ("xdp", "loopback"),
        ("xdp:x", "'xdp:x'"),
        ("rdma", "'rdma'"),
        ("vma", "libvma"),
    ],
)
def test_context__names_the_reason_without_a_datapath(datapath: str, words: str) -> None:
    with pytest.raises(mlt.ConfigError, match=names("rank 0: ", words)):
        mlt.Context(0, 1, datapath=datapath)
