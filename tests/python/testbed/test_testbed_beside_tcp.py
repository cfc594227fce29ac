"""A transfer beside another host's TCP through one port: neither starves, however deep the port's buffer is."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from testbed_lab import needs_testbed
from testbed_ranks import running, say

from mlt.testbed import Testbed

pytestmark = needs_testbed

PORT = 7000
SETTLING, COUNTED = 4.0, 8.0
# RECOVERY R1.2.16: half of a fair share each way.
LEAST_SHARE = 0.25
# One way, four tensors in flight, until a line comes.
JOB = """
import threading
over = threading.Event()
def listen():
    sys.stdin.readline()
    over.set()
threading.Thread(target=listen, daemon=True).start()
with connect() as context:
    tensors = [np.ones(1 << 16, np.float32) for _ in range(4)]
    last = np.zeros(1, np.int64)
    pending = []
    while not last[0]:
        if rank == 1:
            pending = [context.post_send(tensor, to=0) for tensor in tensors]
            last[0] = over.is_set()
        else:
            pending = [context.post_recv(tensor, from_=1) for tensor in tensors]
        for operation in pending:
            operation.wait(60)
        context.broadcast(last, root=1)
    print("DONE", flush=True)
"""
RECEIVE = f"""
import socket
server = socket.create_server(("", {PORT}))
print("LISTENING", flush=True)
connection, _ = server.accept()
while connection.recv(1 << 18):
    pass
"""
SEND = f"""
import socket, sys
with socket.create_connection((sys.argv[1], {PORT})) as connection:
    while True:
        connection.sendall(bytes(1 << 18))
"""


@contextmanager
def bulk(bed: Testbed, sender: str, receiver: str) -> Iterator[None]:
    """TCP as fast as it goes, from before the block to its end."""
    server = bed.popen(receiver, [sys.executable, "-c", RECEIVE], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        assert server.stdout.readline() == "LISTENING\n"
        client = bed.popen(sender, [sys.executable, "-c", SEND, bed.address(receiver)], stderr=subprocess.DEVNULL)
        try:
            yield
        finally:
            client.kill()
            client.communicate()
    finally:
        server.kill()
        server.communicate()


def sent_up(bed: Testbed, host: str) -> int:
    return next(one.seen for one in bed.link_counters() if (one.link, one.direction) == (host, "up"))


@pytest.mark.parametrize("control", ["cubic", "bbr"])
def test_send__and_tcp_through_one_port_both_get_their_share(control: str) -> None:
    with Testbed(hosts=3, rate="100mbit", buffer="512KiB") as bed:
        bed.set_tcp_control(control)
        with bulk(bed, "host2", "host0"):
            time.sleep(1)  # the buffer is full
            with running(bed, JOB, 2) as ranks:
                time.sleep(SETTLING)
                before = [sent_up(bed, host) for host in ("host1", "host2")]
                time.sleep(COUNTED)
                ours, theirs = (
                    sent_up(bed, host) - then for host, then in zip(("host1", "host2"), before, strict=True)
                )
                for rank in ranks:
                    say(rank)
                for rank in ranks:
                    out, error = rank.communicate(timeout=30)
                    assert out == "DONE\n", error
    share = ours / (ours + theirs)
    assert LEAST_SHARE <= share <= 1 - LEAST_SHARE, f"{ours} packets beside {theirs} of TCP: {share:.2f}"
