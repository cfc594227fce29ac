"""Tensors are lent, not copied, and given back; a context opens, closes and counts."""

from __future__ import annotations

import socket
import sys
import weakref

import numpy as np
import pytest
from checks import in_threads
from transport_jobs import exchange, exchange_pending, floats, local_job, takes

import mlt
from mlt import _core
from mlt._shared.ports import free_port


def peak_kilobytes() -> int:
    """Largest resident size so far."""
    with open("/proc/self/status", encoding="ascii") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))


def test_tensor__is_lent_not_copied(clean: list[mlt.Context]) -> None:
    sent = floats(64)
    into = np.ones_like(sent)
    assert _core.tensor_info(sent).address == sent.ctypes.data
    assert _core.tensor_info(into, writable=True).address == into.ctypes.data
    exchange(clean[0], clean[1], sent, into)
    before = peak_kilobytes()
    exchange(clean[0], clean[1], sent, into)
    # A copy on either side would raise the peak by 64 MB.
    assert peak_kilobytes() - before < 16 * 1024
    np.testing.assert_array_equal(into, sent)


def test_tensor__is_kept_until_its_completion_is_taken(clean: list[mlt.Context]) -> None:
    landing = np.zeros(4, np.float32)
    gone = weakref.ref(landing)
    receive = clean[1].post_recv(landing, from_=0, tag=40)
    del landing
    assert gone() is not None
    exchange_pending(clean, receive, 40)
    assert gone() is None


def test_tensor__references_are_given_back_exactly(clean: list[mlt.Context]) -> None:
    sent, into = np.ones(4, np.float32), bytearray(16)
    before = sys.getrefcount(sent), sys.getrefcount(into)
    for _ in range(50):
        exchange(clean[0], clean[1], sent, into, tag=42, dtype="float32")
        with pytest.raises(mlt.InvalidBufferError):
            clean[1].post_recv(sent[::2], from_=0)
        with pytest.raises(mlt.ConfigError):
            clean[1].post_recv(into, 2.0, from_=0, dtype="float32")
    assert (sys.getrefcount(sent), sys.getrefcount(into)) == before


def test_tensor__cannot_be_resized_while_lent(clean: list[mlt.Context]) -> None:
    landing = bytearray(16)
    receive = clean[1].post_recv(landing, from_=0, tag=41, dtype="float32")
    with pytest.raises(BufferError):
        landing.extend(b"more")
    exchange_pending(clean, receive, 41)
    landing.extend(b"more")


def test_context__is_safe_from_many_threads(lossy: list[mlt.Context]) -> None:
    wrong: list[int] = []

    def work(tag: int) -> None:
        for i in range(20):
            sent, into = np.full(2_000, tag + i, np.float32), np.zeros(2_000, np.float32)
            exchange(lossy[0], lossy[1], sent, into, tag=1_000 + tag)
            if not (into == tag + i).all():
                wrong.append(tag)

    in_threads(work, [(tag,) for tag in range(8)])
    assert wrong == []


def test_context__counts_by_name(lossy: list[mlt.Context]) -> None:
    counters = lossy[0].counters()
    assert counters["data_packets_sent"] > 0
    assert any(name.startswith("fault_") and value > 0 for name, value in counters.items())
    assert all(isinstance(value, int) for value in counters.values())


def test_context__knows_its_place(clean: list[mlt.Context]) -> None:
    assert [(one.rank, one.size, one.world_size, one.services) for one in clean] == [(0, 2, 2, 0), (1, 2, 2, 0)]
    assert clean[0].is_peer_up(1)
    assert clean[0].rate_gbps(1) > 0
    assert "rank 0 of 2" in repr(clean[0])


def test_context__close_gives_everything_back() -> None:
    landing = bytearray(400)
    with local_job(2) as (a, b):
        receive = b.post_recv(landing, from_=0, tag=1)
        with takes(at_most=2.0):
            b.close()
        with pytest.raises(mlt.MltError, match="rank 1"):
            receive.wait(1)
        landing.extend(b"ours again")
        b.close()
        assert b.closed
        with pytest.raises(mlt.ClosedError):
            b.post_recv(landing, from_=0)
        with takes(at_most=2.0), pytest.raises(mlt.PeerFailedError, match="rank 1"):
            a.post_recv(landing, from_=1, timeout=5).wait()


def test_context__over_ipv6() -> None:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            pass
    except OSError:
        pytest.skip("this machine has no IPv6 loopback")
    into = np.zeros(1_000, np.float32)
    with local_job(2, master_addr="::1") as (a, b):
        assert exchange(a, b, np.ones(1_000, np.float32), into).status == "complete"
    assert into.all()


def test_context__alone_needs_no_peer() -> None:
    with takes(at_most=2.0), mlt.Context(0, 1) as context:
        assert context.size == 1
        assert context.poll_cq() == []


def test_close__frees_the_ports_while_the_context_is_kept() -> None:
    ways = [{"port": free_port()}]
    first = mlt.Context(rank=0, world_size=1, paths=ways)
    first.close()
    with mlt.Context(rank=0, world_size=1, paths=ways) as second:  # raises if the first still holds its port
        assert second.size == 1
