"""Sends and receives between contexts: every element type and size, with and without loss."""

from __future__ import annotations

import array

import numpy as np
import pytest
from transport_jobs import exchange, floats, local_job, takes

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
# Empty, one element, odd, around the segments of 1,432 bytes of a lossy job, many segments with a short last one.
ELEMENT_COUNTS = [0, 1, 7, 178, 179, 357, 358, 100_003]
MEGABYTES = 4


def values(dtype: str, count: int) -> np.ndarray:
    return np.random.default_rng(count).integers(0, 2 if dtype == "bool" else 100, count).astype(dtype)


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


def test_up_to__what_was_sent_is_complete_and_bounded_by_its_own_size(lossy: list[mlt.Context]) -> None:
    for count in ELEMENT_COUNTS:
        sent = values("float32", count) + 1
        into = np.full(ELEMENT_COUNTS[-1] + 100, -1, np.float32)
        done = exchange(lossy[0], lossy[1], sent, into, loss_bound=0.3, up_to=True)
        assert done.bytes == 4 * count
        missing = np.zeros(count, bool)
        for offset, length in done.missing:
            missing[offset // 4 : (offset + length) // 4] = True
        assert missing.sum() * 4 == done.missing_bytes <= 0.3 * done.bytes
        assert np.array_equal(into[:count], np.where(missing, 0, sent))
        assert (into[count:] == -1).all()


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

    def first_ten_critical(_tensor: np.ndarray, grid: mlt.SegmentGrid) -> mlt.SegmentPriorities:
        numbers = np.arange(grid.segment_count)
        return mlt.SegmentPriorities(important=numbers % 2 == 0, critical=numbers < 10)

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
    assert 0 <= done.elapsed_ns < 10e9
    done = send.wait()
    assert (done.op, done.kind, done.peer, done.tag, done.bytes) == (send, "send", 1, 21, 4_000)


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
    done = exchange(lossy[0], lossy[1], sent, into, loss_bound="20%", stop="eager")
    assert done.missing_bytes <= done.allowed_missing_bytes
