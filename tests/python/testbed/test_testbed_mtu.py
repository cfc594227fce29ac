"""Packets that do not fit the way: a job fails at once where a router says so, else says what it may be."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import Any

import pytest
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
    found["too large"] = context.counters()["udp_send_too_large"]
    print(json.dumps(found), flush=True)
    time.sleep(0.5)
"""


def run(bed: Testbed, **options: Any) -> list[dict[str, Any]]:
    """Both ranks of the job, to their end; what each printed."""
    command = [sys.executable, "-c", JOB, json.dumps({"timeout": 30, **options})]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    processes = [bed.popen(host, command, **pipes) for host in bed.hosts]
    outputs = [process.communicate(timeout=100) for process in processes]
    for out, err in outputs:
        assert out, err
    return [json.loads(out) for out, _ in outputs]


def test_routed__a_smaller_mtu_on_the_way_fails_at_once_and_names_it() -> None:
    with Testbed(hosts=2, spines=1, rate="200mbit", uplink={"mtu": 1400}) as bed:
        began = time.monotonic()
        found = run(bed)
        assert time.monotonic() - began < 20
        for rank, one in enumerate(found):
            assert one["segment"] == 1432
            assert one["small sent"] == one["small received"] == "complete"
            # The other side's send fails as ours does, so our receive is given up.
            assert one["large received"].startswith("CancelledError")
            assert one["large seconds"] < 5
            text = one["large sent"]
            assert text.startswith(f"PeerFailedError: rank {rank}: send of tag 100000")
            assert (
                f"MTU mismatch: the path from rank {rank} to rank {1 - rank} ({bed.address(f'host{1 - rank}')})" in text
            )
            assert "carries packets of 1400 bytes at most, and one of 1500 was to go there (segments of 1432" in text
            assert "Context(segment_bytes=1328)" in text
            assert one["too large"] > 0
        # The way out that the text names, on a path that the kernel still remembers.
        for one in run(bed, segment_bytes=1328):
            assert one["large sent"] == one["large received"] == "complete"


def test_routed__the_same_over_ipv6() -> None:
    with Testbed(hosts=2, spines=1, rate="200mbit", uplink={"mtu": 1400}) as bed:
        found = run(bed, master_addr="fd77::1", interface="fd77::/16")
        for one in found:
            assert (
                "carries packets of 1400 bytes at most, and one of 1496 was to go there (segments of 1408"
                in (one["large sent"])
            )
            assert "Context(segment_bytes=1312)" in one["large sent"]


def test_switched__a_port_that_drops_large_frames_silently_is_named_as_a_possibility() -> None:
    with Testbed(hosts=2, rate="200mbit") as bed:

        def shrink() -> None:
            subprocess.run(["ip", "link", "set", "host1", "mtu", "1400"], check=True)

        namespaces.inside(bed.path("switch"), shrink)
        for one in run(bed, timeout=3):
            assert one["small sent"] == "complete"
            text = one["large sent"]
            # Whichever side runs out of time first: the receive was posted before the send.
            assert text.startswith(("OperationTimeoutError", "CancelledError"))
            assert "hardly any with a segment of 1432 bytes arrived" in text
            assert "packets of 1500 bytes without a word" in text
            assert one["too large"] == 0


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
