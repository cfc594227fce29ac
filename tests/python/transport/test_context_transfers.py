"""Sends and receives between contexts: every element type and size, with and without loss."""

from __future__ import annotations

import array
import os
import signal
import socket
import sys
import threading
import time
import weakref
from collections.abc import Iterator

import numpy as np
import pytest
from transport_jobs import exchange, local_job, takes

import mlt
from mlt import _core

DTYPES = [
    "bool",
    "int8",
    "uint8",
    "int16",
    "uint16",
    "int32",
    "uint32",
    "int64",
    "uint64",
    "float16",
    "float32",
    "float64",
]
# Empty, one element, odd, around one segment of loopback's payload, many segments with a short last one.
ELEMENT_COUNTS = [0, 1, 7, 178, 179, 357, 358, 100_003]
MEGABYTES = 4


@pytest.fixture(scope="module")
def clean() -> Iterator[list[mlt.Context]]:
    with local_job(2) as contexts:
        yield contexts


@pytest.fixture(scope="module")
def lossy() -> Iterator[list[mlt.Context]]:
    with local_job(2, faults=mlt.Faults(drop=0.05, duplicate=0.01, reorder=0.05, seed=11)) as contexts:
        yield contexts


def values(dtype: str, count: int) -> np.ndarray:
    return np.random.default_rng(count).integers(0, 2 if dtype == "bool" else 100, count).astype(dtype)


def floats(megabytes: int) -> np.ndarray:
    return (np.random.default_rng(megabytes).random(megabytes * 2**18) + 1).astype(np.float32)


@pytest.mark.parametrize("dtype", DTYPES)
def test_transfer__every_dtype_and_size_arrives_exactly_despite_losses(lossy: list[mlt.Context], dtype: str) -> None:
    for count in ELEMENT_COUNTS:
        sent = values(dtype, count)
        into = np.ones(count, dtype)
        done = exchange(lossy[0], lossy[1], sent, into)
        assert (done.status, done.bytes, done.missing, done.loss_fraction) == ("complete", sent.nbytes, [], 0.0)
        np.testing.assert_array_equal(into, sent)


def test_transfer__shapes_and_kinds_of_buffers(clean: list[mlt.Context]) -> None:
    a, b = clean
    grid = np.arange(12, dtype=np.float32).reshape(3, 4)
    scalar, plane = np.zeros((), np.float64), np.zeros((3, 4), np.float32)
    exchange(a, b, grid, plane)
    np.testing.assert_array_equal(plane, grid)
    exchange(a, b, np.float64(3.5), scalar)
    assert scalar == 3.5
    text, landing = b"bounded loss", bytearray(12)
    exchange(a, b, text, landing)
    assert landing == text
    exchange(a, b, array.array("i", [1, -2, 3]), memoryview(landing).cast("i"))
    assert list(memoryview(landing).cast("i")) == [1, -2, 3]


def test_transfer__bfloat16_named_by_dtype(lossy: list[mlt.Context]) -> None:
    bits = np.arange(5_000, dtype=np.uint16)
    into = np.zeros_like(bits)
    exchange(lossy[0], lossy[1], bits, into, dtype="bfloat16")
    np.testing.assert_array_equal(into, bits)


def test_transfer__torch_tensors_without_a_copy(lossy: list[mlt.Context]) -> None:
    torch = pytest.importorskip("torch")
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.bool, torch.uint8):
        sent = (torch.rand(50_001) * 100).to(dtype)
        into = torch.zeros_like(sent)
        assert _core.tensor_info(into).address == into.data_ptr()
        exchange(lossy[0], lossy[1], sent, into)
        assert torch.equal(into, sent)
    parameter = torch.nn.Parameter(torch.zeros(3, 5))
    exchange(lossy[0], lossy[1], np.ones((3, 5), np.float32), parameter)
    assert bool((parameter == 1).all())


@pytest.mark.parametrize("fill", ["zero", "keep"])
def test_transfer__loses_at_most_the_bound_and_says_what(lossy: list[mlt.Context], fill: str) -> None:
    sent = floats(MEGABYTES)
    into = np.full_like(sent, -7)
    done = exchange(lossy[0], lossy[1], sent, into, loss_bound=0.1, fill=fill)
    assert done.status == "within_bound"
    assert done.missing == sorted(done.missing)
    assert 0 < sum(length for _, length in done.missing) == done.missing_bytes <= done.allowed_missing_bytes
    assert done.allowed_missing_bytes == int(0.1 * sent.size) * 4
    assert done.loss_fraction == done.missing_bytes / sent.nbytes
    arrived = np.ones(sent.size, bool)
    for offset, length in done.missing:
        arrived[offset // 4 : (offset + length) // 4] = False
    np.testing.assert_array_equal(into[arrived], sent[arrived])
    assert set(into[~arrived]) == {0.0 if fill == "zero" else -7.0}


def test_transfer__without_a_bound_repairs_every_loss(lossy: list[mlt.Context]) -> None:
    sent = floats(MEGABYTES)
    into = np.zeros_like(sent)
    receive = lossy[1].post_recv(into, from_=0, tag=9)
    send = lossy[0].post_send(sent, to=1, tag=9)
    assert lossy[0].wait(send, timeout=30).repairs > 0
    done = lossy[1].wait(receive, timeout=30)
    assert (done.status, done.repairs > 0) == ("complete", True)
    np.testing.assert_array_equal(into, sent)
    assert lossy[0].counters()["segments_repaired"] > 0


def test_transfer__critical_segments_are_never_lost() -> None:
    sent = floats(1)

    def first_ten_critical(_tensor: np.ndarray, grid: mlt.SegmentGrid) -> mlt.SegmentTags:
        numbers = np.arange(grid.segment_count)
        return mlt.SegmentTags(important=numbers % 2 == 0, critical=numbers < 10)

    with local_job(2, faults=mlt.Faults(drop=0.3, seed=5)) as (a, b):
        elements = a.segment_grid(sent, to=1).segment_elements
        lost = 0
        for _ in range(5):
            into = np.zeros_like(sent)
            lost += exchange(a, b, sent, into, loss_bound=0.6, prio_func=first_ten_critical).missing_bytes
            np.testing.assert_array_equal(into[: 10 * elements], sent[: 10 * elements])
        assert lost > 0


def test_transfer__every_priority_function_delivers(lossy: list[mlt.Context]) -> None:
    sent = floats(1)
    for prio_func in (None, mlt.priority.magnitude, mlt.priority.all_important, mlt.priority.random(3)):
        into = np.zeros_like(sent)
        exchange(lossy[0], lossy[1], sent, into, prio_func=prio_func)
        np.testing.assert_array_equal(into, sent)


def test_transfer__priority_function_sees_the_flat_tensor_and_its_grid(clean: list[mlt.Context]) -> None:
    seen = []

    def look(tensor: np.ndarray, grid: mlt.SegmentGrid) -> np.ndarray:
        seen.append((tensor, grid))
        return np.ones(grid.segment_count, bool)

    sent = np.random.default_rng(1).random((100, 30)).astype(np.float32)
    done = clean[0].post_send(sent, look, to=1, tag=3, layer=3, layers=4)
    clean[1].post_recv(np.zeros_like(sent), from_=0, tag=3).wait(10)
    done.wait(10)
    ((tensor, grid),) = seen
    assert np.shares_memory(tensor, sent)
    assert tensor.shape == (3_000,)
    assert (grid.elements, grid.dtype) == (3_000, "float32")
    assert grid.segment_count == -(-3_000 // grid.segment_elements)
    # Class of the paper: floor(3 * 7 / 4).
    assert grid.traffic_class == 5


def test_completion__names_its_operation(clean: list[mlt.Context]) -> None:
    sent, into = np.ones(1_000, np.float32), np.zeros(1_000, np.float32)
    receive = clean[1].post_recv(into, from_=0, tag=21)
    send = clean[0].post_send(sent, to=1, tag=21)
    done = clean[1].wait(receive)
    assert (done.op, done.kind, done.peer, done.tag, done.bytes) == (receive, "recv", 0, 21, 4_000)
    assert (done.status, done.missing_bytes, done.repairs, done.error, done.failed) == ("complete", 0, 0, "", False)
    assert 0 < done.elapsed_ns < 10e9
    done = send.wait()
    assert (done.op, done.kind, done.peer, done.tag, done.bytes) == (send, "send", 1, 21, 4_000)


def test_poll_cq__takes_what_is_done_and_never_blocks(clean: list[mlt.Context]) -> None:
    a, b = clean
    with takes(at_most=0.2):
        assert b.poll_cq() == []
    landings = [np.zeros(10, np.float32) for _ in range(10)]
    receives = {b.post_recv(landing, from_=0, tag=100 + i) for i, landing in enumerate(landings)}
    for i in range(10):
        a.post_send(np.full(10, i, np.float32), to=1, tag=100 + i)
    done: list[mlt.Completion] = []
    until = time.monotonic() + 10
    while len(done) < 10 and time.monotonic() < until:
        batch = b.poll_cq(max_completions=3)
        assert len(batch) <= 3
        done += batch
        time.sleep(0.001)
    assert {one.op for one in done} == receives
    assert [landing[0] for landing in landings] == list(range(10))
    while len(a.poll_cq()) + a.engine.pinned and time.monotonic() < until:
        time.sleep(0.001)
    assert a.engine.pinned == b.engine.pinned == 0


def test_wait__timeout_leaves_the_operation_running(clean: list[mlt.Context]) -> None:
    into = np.zeros(100, np.float32)
    receive = clean[1].post_recv(into, from_=0, tag=31)
    with takes(at_least=0.25, at_most=1.0), pytest.raises(mlt.WaitTimeoutError, match=r"rank 1.*rank 0, tag 31"):
        clean[1].wait(receive, timeout=0.25)
    send = clean[0].post_send(np.ones(100, np.float32), to=1, tag=31)
    assert clean[1].wait(receive, timeout=10).status == "complete"
    clean[0].wait(send)
    assert into.all()


def test_wait__lets_other_threads_run(clean: list[mlt.Context]) -> None:
    turns = 0
    stop = threading.Event()

    def count() -> None:
        nonlocal turns
        while not stop.is_set():
            turns += 1

    receive = clean[1].post_recv(np.zeros(4, np.float32), from_=0, tag=32)
    thread = threading.Thread(target=count)
    thread.start()
    before = turns
    with pytest.raises(mlt.WaitTimeoutError):
        clean[1].wait(receive, timeout=0.4)
    after = turns
    stop.set()
    thread.join()
    # Had the wait held the GIL, the other thread would not have had one turn in its 0.4 s.
    assert after - before > 1_000
    exchange_pending(clean, receive, 32)


def exchange_pending(contexts: list[mlt.Context], receive: mlt.Operation, tag: int) -> None:
    """Satisfy a 4-element receive that a test left open."""
    send = contexts[0].post_send(np.ones(4, np.float32), to=1, tag=tag)
    receive.wait(10)
    send.wait(10)


def test_wait__gives_way_to_signals(clean: list[mlt.Context]) -> None:
    class Interrupted(Exception):
        pass

    def interrupt(*_: object) -> None:
        raise Interrupted

    receive = clean[1].post_recv(np.zeros(4, np.float32), from_=0, tag=33)
    previous = signal.signal(signal.SIGUSR1, interrupt)
    try:
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGUSR1)).start()
        with takes(at_most=2.0), pytest.raises(Interrupted):
            clean[1].wait(receive, timeout=20)
    finally:
        signal.signal(signal.SIGUSR1, previous)
    exchange_pending(clean, receive, 33)


def test_wait__gets_its_completion_although_another_thread_polls(clean: list[mlt.Context]) -> None:
    stop = threading.Event()
    polled: list[mlt.Completion] = []

    def poll() -> None:
        while not stop.is_set():
            polled.extend(clean[1].poll_cq())

    thread = threading.Thread(target=poll)
    thread.start()
    try:
        for _ in range(20):
            receive = clean[1].post_recv(np.zeros(4, np.float32), from_=0, tag=34)
            # Around the 100 ms after which a wait on the main thread looks for signals.
            timer = threading.Timer(0.1, clean[0].post_send, (np.ones(4, np.float32),), {"to": 1, "tag": 34})
            timer.start()
            assert receive.wait(10).status == "complete"
            timer.join()
    finally:
        stop.set()
        thread.join()
    assert polled == []


def test_wait__twice_is_refused(clean: list[mlt.Context]) -> None:
    receive = clean[1].post_recv(np.zeros(4, np.float32), from_=0, tag=35)
    exchange_pending(clean, receive, 35)
    with pytest.raises(mlt.UnknownOperationError, match="rank 1"):
        receive.wait()


def test_operation__timeout_fails_it_in_time(clean: list[mlt.Context]) -> None:
    landing = bytearray(400)
    receive = clean[1].post_recv(landing, from_=0, tag=36, timeout=0.3)
    with takes(at_least=0.25, at_most=1.5), pytest.raises(mlt.OperationTimeoutError, match=r"rank 1.*tag 36") as caught:
        receive.wait()
    assert caught.value.completion is not None
    assert (caught.value.completion.status, caught.value.peer) == ("timed_out", 0)
    landing.extend(b"ours again")


def test_operation__cancel_ends_it(clean: list[mlt.Context]) -> None:
    receive = clean[1].post_recv(bytearray(400), from_=0, tag=37)
    receive.cancel()
    with takes(at_most=1.0), pytest.raises(mlt.CancelledError, match="tag 37"):
        receive.wait(5)


def test_receive__deadline_completes_with_what_came() -> None:
    sent = floats(1)
    with local_job(2, faults=mlt.Faults(drop=0.5, seed=3), line_rate_gbps=0.02) as (a, b):
        into = np.full_like(sent, -1)
        receive = b.post_recv(into, from_=0, tag=1, deadline=0.2)
        send = a.post_send(sent, to=1, tag=1)
        with takes(at_least=0.1, at_most=2.0):
            done = receive.wait(10)
        assert done.status == "deadline"
        assert done.missing_bytes > done.allowed_missing_bytes == 0
        assert not done.failed
        arrived = np.ones(sent.size, bool)
        for offset, length in done.missing:
            arrived[offset // 4 : (offset + length) // 4] = False
        np.testing.assert_array_equal(into[arrived], sent[arrived])
        assert not into[~arrived].any()
        send.wait(10)


def test_receive__eager_stops_within_the_bound(lossy: list[mlt.Context]) -> None:
    sent = floats(MEGABYTES)
    into = np.zeros_like(sent)
    done = exchange(lossy[0], lossy[1], sent, into, loss_bound=0.2, stop="eager")
    assert done.missing_bytes <= done.allowed_missing_bytes


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


def peak_kilobytes() -> int:
    """Largest resident size so far."""
    with open("/proc/self/status", encoding="ascii") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))


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

    threads = [threading.Thread(target=work, args=(tag,)) for tag in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
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


def test_context__alone_needs_nobody() -> None:
    with takes(at_most=2.0), mlt.Context(0, 1) as context:
        assert context.size == 1
        assert context.poll_cq() == []
