"""Packets that do not fit the path: the job finds out by probes of its own, and ICMP changes nothing."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import Any

import pytest
from checks import assert_names
from testbed_lab import needs_testbed

from mlt.testbed import Testbed, namespaces

pytestmark = needs_testbed
pytest.importorskip("mlt._core")

# Each rank sends the other a small tensor, then a large one, and prints what became of it.
JOB = """
import json, sys, time
import numpy as np
import mlt
options = json.loads(sys.argv[1])
with mlt.Context(connect_timeout=20, operation_timeout=options.pop("timeout"), **options) as context:
    peer = 1 - context.rank
    found = {"segment": context.segment_grid(np.zeros(1, np.float32), to=peer).segment_elements * 4}
    for name, count in (("small", 16), ("large", 100_000)):
        began = time.monotonic()
        receive = context.post_recv(np.zeros(count, np.float32), from_=peer, tag=count)
        send = context.post_send(np.ones(count, np.float32), to=peer, tag=count)
        for what, operation in (("sent", send), ("received", receive)):
            try:
                found[f"{name} {what}"] = context.wait(operation).status
            except mlt.MltError as error:
                found[f"{name} {what}"] = f"{type(error).__name__}: {error}"
        found[f"{name} seconds"] = time.monotonic() - began
    counters = context.counters()
    found["too large"] = counters["udp_send_too_large"]
    found["limits"] = counters["mtu_limits_found"]
    print(json.dumps(found), flush=True)
    sys.stdin.read()  # the peer may still need this rank's replies
"""


def run(bed: Testbed, **options: Any) -> list[dict[str, Any]]:
    """Both ranks of the job, to their end; what each printed."""
    command = [sys.executable, "-c", JOB, json.dumps({"timeout": 30, **options})]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    processes = [bed.popen(host, command, **pipes) for host in bed.hosts]
    lines = [process.stdout.readline() for process in processes if process.stdout]
    for process, line in zip(processes, lines, strict=True):
        assert line, process.communicate(timeout=100)
    for process in processes:
        process.communicate(timeout=100)
    return [json.loads(line) for line in lines]


def test_routed__a_smaller_mtu_on_the_route_is_found_within_a_second_and_named() -> None:
    with Testbed(hosts=2, spines=1, rate="200mbit", uplink={"mtu": 1400}) as bed:
        began = time.monotonic()
        found = run(bed)
        assert time.monotonic() - began < 20
        for rank, one in enumerate(found):
            assert one["segment"] == 1432
            assert one["small sent"] == one["small received"] == "complete"
            # The other side's send fails as ours does, so our receive is cancelled, and its error has that cause.
            assert one["large received"].startswith("CancelledError")
            other = bed.address(f"host{1 - rank}")
            assert_names(one["large received"], f"the path from rank {1 - rank} ({other}) to rank {rank}")
            assert_names(one["large received"], "at most 1396 bytes, not of 1500 bytes", f"as rank {1 - rank} found")
            assert "Context(segment_bytes=1328)" in one["large received"]
            assert one["large seconds"] < 3
            text = one["large sent"]
            assert text.startswith(f"PeerFailedError: rank {rank}: send of tag 100000")
            assert_names(text, "MTU mismatch", f"rank {rank} to rank {1 - rank} ({bed.address(f'host{1 - rank}')})")
            assert_names(text, "1500 bytes", "1432 bytes", "1396 bytes")
            assert "Context(segment_bytes=1328)" in text
            assert one["too large"] == 0
            assert one["limits"] == 1
        # The way out that the text names.
        for one in run(bed, segment_bytes=1328):
            assert one["large sent"] == one["large received"] == "complete"


def test_routed__the_same_over_ipv6() -> None:
    with Testbed(hosts=2, spines=1, rate="200mbit", uplink={"mtu": 1400}) as bed:
        found = run(bed, master_addr="fd77::1", interface="fd77::/16")
        for one in found:
            assert_names(one["large sent"], "1496 bytes", "1408 bytes", "1400 bytes")
            assert "Context(segment_bytes=1312)" in one["large sent"]


def test_switched__a_port_that_drops_large_frames_silently_is_named() -> None:
    with Testbed(hosts=2, rate="200mbit") as bed:

        def shrink() -> None:
            subprocess.run(["ip", "link", "set", "host1", "mtu", "1400"], check=True)

        namespaces.inside(bed.path("switch"), shrink)
        for rank, one in enumerate(run(bed)):
            assert one["small sent"] == "complete"
            assert one["large sent"].startswith(f"PeerFailedError: rank {rank}")
            assert_names(one["large sent"], "1500 bytes", "1432 bytes")
            assert one["large seconds"] < 3
            assert one["too large"] == 0


# Rank 0 sends rank 1 a tensor that does not pass, and ends by the error. The receive of that tensor is cancelled at
# once, before rank 0 ends, and what rank 1 waits for next fails: both with the cause.
ONE_WAY = """
import sys
import numpy as np
import mlt
with mlt.Context(connect_timeout=20, operation_timeout=60) as context:
    if context.rank == 0:
        context.wait(context.post_send(np.ones(100_000, np.float32), to=1, tag=1))
    first = context.post_recv(np.zeros(100_000, np.float32), from_=0, tag=1)
    second = context.post_recv(np.zeros(4, np.float32), from_=0, tag=2)
    try:
        context.wait(first)
    except mlt.CancelledError as error:
        assert "MTU mismatch: the path from rank 0" in str(error), error
    context.wait(second)
"""

ALL_REDUCE = """
import numpy as np
import mlt
with mlt.Context(connect_timeout=20, operation_timeout=60) as context:
    context.all_reduce(np.ones(300_000, np.float32))
"""


@pytest.mark.parametrize("program", [ONE_WAY, ALL_REDUCE], ids=["transfer", "all-reduce"])
def test_receiver__whose_peer_ended_by_the_path_to_it_names_that_path(program: str) -> None:
    with Testbed(hosts=2, rate="200mbit") as bed:
        shrink = ["ip", "link", "set", "host1", "mtu", "1400"]  # what goes to rank 1, and what comes from it
        namespaces.inside(bed.path("switch"), lambda: subprocess.run(shrink, check=True))
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        processes = [bed.popen(host, [sys.executable, "-c", program], **pipes) for host in bed.hosts]
        for process in processes:
            error = process.communicate(timeout=100)[1].splitlines()[-1]
            assert process.returncode == 1
            assert error.startswith("mlt.errors.PeerFailedError")
            # In an all-reduce each rank sends, and the one whose probes are first tells the other.
            sender = 1 if program == ALL_REDUCE and "from rank 1" in error else 0
            receiver = bed.address(f"host{1 - sender}")
            assert_names(error, "MTU mismatch", f"the path from rank {sender} to rank {1 - sender} ({receiver})")
            assert_names(error, "1500 bytes", "Context(segment_bytes=1328)", f"`mlt doctor {receiver}`")


def test_interface__whose_mtu_shrinks_while_a_job_runs_ends_its_sends_at_once() -> None:
    with Testbed(hosts=2, rate="200mbit") as bed:
        program = JOB.replace(
            "    for name, count in", "    print('ready', flush=True); sys.stdin.readline()\n    for name, count in"
        )
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        processes = [bed.popen(host, [sys.executable, "-c", program, '{"timeout": 30}'], **pipes) for host in bed.hosts]
        for process in processes:
            assert process.stdout.readline() == "ready\n", process.communicate()[1]
        shrink = ["ip", "link", "set", "mlt0", "mtu", "1400"]
        namespaces.inside(bed.path("host0"), lambda: subprocess.run(shrink, check=True))
        for process in processes:
            process.stdin.write("go\n")
            process.stdin.flush()
        outputs = [process.communicate(timeout=100) for process in processes]
        for out, err in outputs:
            assert out, err
        first = json.loads(outputs[0][0])
        assert first["small sent"] == "complete"
        text = "the interface of rank 0 towards rank 1 (10.77.0.2) carries packets of at most 1400 bytes"
        assert text in first["large sent"]
        assert "segment_bytes=1328" in first["large sent"]
        assert first["too large"] > 0


# Sends and receives for some seconds; prints the time of each step and the counters.
STEPS = """
import json, sys, time
import numpy as np
import mlt
with mlt.Context(connect_timeout=20, operation_timeout=20) as context:
    peer = 1 - context.rank
    took = []
    print("ready", flush=True)
    end = time.monotonic() + float(sys.argv[1])
    full, going = np.ones(100_000, np.float32), np.ones(1, np.float32)
    while True:
        began = time.monotonic()
        tensors = [np.zeros(100_000, np.float32), np.zeros(1, np.float32)]
        going[0] = began < end
        posts = [context.post_recv(tensor, from_=peer, tag=tag) for tag, tensor in enumerate(tensors)]
        posts += [context.post_send(tensor, to=peer, tag=tag) for tag, tensor in enumerate((full, going))]
        assert all(context.wait(post).status == "complete" for post in posts)
        took.append(time.monotonic() - began)
        if not (going[0] and tensors[1][0]):
            break
    print(json.dumps({"took": took, "counters": context.counters()}), flush=True)
"""

# One ICMP "fragmentation needed" from this process: it quotes a packet without ports and without a cookie.
FORGER = """
import socket, struct, sys, time
victim, peer = map(socket.inet_aton, sys.argv[1:3])

def checked(data, at):
    words = sum(struct.unpack(f"!{len(data) // 2}H", data))
    words = (words >> 16) + (words & 0xFFFF)
    return data[:at] + struct.pack("!H", ~(words + (words >> 16)) & 0xFFFF) + data[at + 2:]

echo = checked(struct.pack("!BBHHH", 0, 0, 0, 1, 1), 2)
quoted = checked(struct.pack("!BBHHHBBH4s4s", 0x45, 0, 1500, 1, 0x4000, 64, 1, 0, victim, peer), 10) + echo
message = checked(struct.pack("!BBHHH", 3, 4, 0, 0, 600) + quoted, 2)
with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP) as sock:
    for _ in range(int(sys.argv[3])):
        sock.sendto(message, (sys.argv[1], 0))
        time.sleep(0.1)  # the pace of the messages
"""


def test_icmp__that_is_forged_changes_nothing_for_this_job_nor_for_the_next() -> None:
    with Testbed(hosts=3, rate="200mbit") as bed:
        victim, peer = bed.address("host0"), bed.address("host1")
        job = {"MASTER_ADDR": victim, "WORLD_SIZE": "2"}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}

        def start(seconds: float) -> list[subprocess.Popen[str]]:
            command = [sys.executable, "-c", STEPS, str(seconds)]
            return [bed.popen(f"host{rank}", command, env={**job, "RANK": str(rank)}, **pipes) for rank in range(2)]

        def results(processes: list[subprocess.Popen[str]]) -> list[dict[str, Any]]:
            outputs = [process.communicate(timeout=100) for process in processes]
            for out, err in outputs:
                assert out, err
            return [json.loads(out.splitlines()[-1]) for out, _ in outputs]

        processes = start(4)
        for process in processes:
            assert process.stdout
            assert process.stdout.readline() == "ready\n", process.communicate()[1]
        time.sleep(1)  # the forger strikes in the middle of the job
        assert bed.popen("host2", [sys.executable, "-c", FORGER, victim, peer, "10"]).wait(30) == 0
        attacked = results(processes)
        route = bed.popen("host0", ["ip", "route", "get", peer], **pipes).communicate(timeout=10)[0]
        assert "mtu 600" in route  # the kernel took it
        for found in [*attacked, *results(start(1))]:
            assert found["counters"]["udp_send_too_large"] == 0
            assert found["counters"]["mtu_limits_found"] == 0
            assert found["counters"]["operations_failed"] == 0
            assert max(found["took"]) < 1
        assert "mtu 600" in bed.popen("host0", ["ip", "route", "get", peer], **pipes).communicate(timeout=10)[0]


def test_hosts__of_different_mtus_use_the_smaller() -> None:
    with Testbed(hosts=2, rate="200mbit", links={"host1": {"mtu": 1400}}) as bed:
        for one in run(bed):
            assert one["segment"] == 1328
            assert one["large sent"] == one["large received"] == "complete"


def test_jumbo_frames__are_used_where_both_hosts_have_them() -> None:
    with Testbed(hosts=2, rate="200mbit", mtu=9000) as bed:
        for one in run(bed):
            assert one["segment"] == 8928
            assert one["large sent"] == one["large received"] == "complete"
