"""Every collective on tensors of a device, against its definition; for the stand-in here and for CUDA elsewhere.

The inputs are written late on the device's current stream, so that a call that does not wait for it sends old data, and
results are read on that stream, so that a reader that does not make it wait reads old data.
"""

from __future__ import annotations

import time
from typing import Any, Protocol

import pytest
import torch
import torch.distributed as dist

TYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.uint8)
# Elements: one; a few; more than a piece of 4 MiB in float32, and no multiple of it.
COUNTS = (1, 1_000, 1_500_001)


class Lab(Protocol):
    """A device to check on."""

    def empty(self, *shape: int, dtype: torch.dtype) -> torch.Tensor:
        """A tensor on the device, full of threes."""

    def fill_late(self, tensor: torch.Tensor, value: float) -> None:
        """Fill it on the current stream, after other work that takes some milliseconds."""

    def host(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor's contents once the current stream has done its work."""


def filled(lab: Lab, count: int, value: float, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    tensor = lab.empty(count, dtype=dtype)
    lab.fill_late(tensor, value)
    return tensor


def expect(lab: Lab, tensor: torch.Tensor, value: float, what: object) -> None:
    found = lab.host(tensor)
    assert bool((found == value).all()), (what, found.flatten()[:3].tolist(), value)


def sums(lab: Lab) -> None:
    """All-reduce of every type and length; in place, asynchronous, and repeated without a wait between."""
    rank, size = dist.get_rank(), dist.get_world_size()
    total = size * (size + 1) // 2
    for dtype in TYPES:
        for count in COUNTS:
            x = filled(lab, count, rank + 1, dtype)
            dist.all_reduce(x)
            expect(lab, x, total, (dtype, count))
    x = filled(lab, 1_500_001, rank + 1)
    works = [dist.all_reduce(x, async_op=True) for _ in range(3)]
    for work in works:
        work.wait()
    expect(lab, x, total * size * size, "three in a row")
    many = [filled(lab, 1_000 + index, rank + index) for index in range(20)]
    works = [dist.all_reduce(one, async_op=True) for one in many]
    for index, (one, work) in enumerate(zip(many, works, strict=True)):
        work.wait()
        expect(lab, one, sum(range(size)) + size * index, ("many", index))
    x = filled(lab, 7, rank)
    dist.all_reduce(x, op=dist.ReduceOp.MAX)
    expect(lab, x, size - 1, "MAX")
    x = filled(lab, 7, rank)
    dist.all_reduce(x, op=dist.ReduceOp.AVG)
    expect(lab, x, (size - 1) / 2, "AVG")
    if dist.get_backend() == "mlt":  # gloo has none
        x = filled(lab, 1_500_001, rank + 1)
        dist.all_reduce(x, op=dist._make_nccl_premul_sum(0.5))
        expect(lab, x, total / 2, "PREMUL_SUM")
    x = filled(lab, 24, rank + 1).view(4, 6).t()
    dist.all_reduce(x)
    expect(lab, x, total, "strided")
    x = filled(lab, 5, rank + 1)
    dist.reduce(x, 0)
    expect(lab, x, total if rank == 0 else rank + 1, "reduce")


def copies(lab: Lab) -> None:
    """Calls that only move data; with the forms of one tensor and of lists."""
    rank, size = dist.get_rank(), dist.get_world_size()
    everyone = range(size)
    for count in COUNTS:
        x = filled(lab, count, rank + 1)
        dist.broadcast(x, src=size - 1)
        expect(lab, x, size, ("broadcast", count))
        outputs = [lab.empty(count, dtype=torch.float32) for _ in everyone]
        dist.all_gather(outputs, filled(lab, count, rank + 1))
        for other, output in enumerate(outputs):
            expect(lab, output, other + 1, ("all_gather", count))
        whole = lab.empty(count * size, dtype=torch.float32)
        dist.all_gather_into_tensor(whole, filled(lab, count, rank + 1))
        for other, part in enumerate(whole.chunk(size)):
            expect(lab, part, other + 1, ("all_gather_into_tensor", count))
        part = lab.empty(count, dtype=torch.float32)
        dist.reduce_scatter_tensor(part, filled(lab, count * size, rank + 1))
        expect(lab, part, size * (size + 1) // 2, ("reduce_scatter_tensor", count))
        part = lab.empty(count, dtype=torch.float32)
        dist.reduce_scatter(part, [filled(lab, count, rank + other) for other in everyone])
        expect(lab, part, sum(everyone) + size * rank, ("reduce_scatter", count))
    outputs = [lab.empty(3, dtype=torch.float32) for _ in everyone]
    dist.all_to_all(outputs, [filled(lab, 3, 10 * rank + other) for other in everyone])
    for other, output in enumerate(outputs):
        expect(lab, output, 10 * other + rank, "all_to_all")
    single = lab.empty(2 * size, dtype=torch.float32)
    dist.all_to_all_single(single, filled(lab, 2 * size, rank))
    for other, part in enumerate(single.chunk(size)):
        expect(lab, part, other, "all_to_all_single")
    outputs = [lab.empty(3, dtype=torch.float32) for _ in everyone]
    dist.gather(filled(lab, 3, rank), outputs if rank == 0 else None, dst=0)
    for other, output in enumerate(outputs):
        expect(lab, output, other if rank == 0 else 3, "gather")
    part = lab.empty(3, dtype=torch.float32)
    dist.scatter(part, [filled(lab, 3, other) for other in everyone] if rank == 0 else None, src=0)
    expect(lab, part, rank, "scatter")
    after, before = lab.empty(1_500_001, dtype=torch.float32), filled(lab, 1_500_001, rank)
    works = dist.batch_isend_irecv(
        [
            dist.P2POp(dist.irecv, after, (rank - 1) % size),
            dist.P2POp(dist.isend, before, (rank + 1) % size),
        ]
    )
    for work in works:
        work.wait()
    expect(lab, after, (rank - 1) % size, "batch_isend_irecv")


def mixed(lab: Lab) -> None:
    """Calls on the device's tensors and on the host's keep their order; one call on both is refused."""
    rank, size = dist.get_rank(), dist.get_world_size()
    for turn in range(5):
        on_device = filled(lab, 1_500_001, rank + turn)
        if rank:  # its tensor is ready late, and the others call the next one late
            for _ in range(50):
                lab.fill_late(on_device, rank + turn)
        work = dist.all_reduce(on_device, async_op=True)
        if not rank:
            time.sleep(0.05)  # that it calls late is the subject
        in_host_memory = torch.full((5,), float(rank))
        dist.all_reduce(in_host_memory)
        assert in_host_memory.tolist() == [sum(range(size))] * 5, in_host_memory
        dist.barrier()
        work.wait()
        expect(lab, on_device, sum(range(size)) + size * turn, ("mixed", turn))
    with pytest.raises(TypeError, match="one device"):
        dist.all_gather([torch.zeros(2) for _ in range(size)], filled(lab, 2, rank))


def futures(lab: Lab) -> None:
    """Futures: ``then`` uses the result, and the caller's stream waits for its own result."""
    rank, size = dist.get_rank(), dist.get_world_size()
    x = filled(lab, 1_000, rank + 1)
    future: Any = dist.all_reduce(x, async_op=True).get_future()
    (result,) = future.wait()
    expect(lab, result, size * (size + 1) // 2, "future")


def polled(lab: Lab, work: Any) -> None:
    """Return when the work says that it completed, which means that its result may be used without a wait."""
    deadline = time.monotonic() + 30
    while not work.is_completed():
        assert time.monotonic() < deadline, "never completed"
        time.sleep(0.0005)


def completion(lab: Lab) -> None:
    """Programs that call ``is_completed``, or take the future of a receive, and never wait."""
    rank, size = dist.get_rank(), dist.get_world_size()
    x = filled(lab, 1_500_001, rank + 1)
    work = dist.all_reduce(x, async_op=True)
    polled(lab, work)
    expect(lab, x, size * (size + 1) // 2, "completed all_reduce")
    for turn in range(2):
        received = lab.empty(300_000, dtype=torch.float32)
        receive: Any = dist.irecv(received, (rank - 1) % size)
        send: Any = dist.isend(filled(lab, 300_000, rank + turn), (rank + 1) % size)
        if turn == 0:
            polled(lab, receive)
        else:
            (result,) = receive.get_future().wait()
            assert result.data_ptr() == received.data_ptr()
        expect(lab, received, (rank - 1) % size + turn, ("completed receive", turn))
        send.wait()


def layouts(lab: Lab) -> None:
    """Ranks whose tensors differ in strides meet, and empty ones; views negated when read are sent as they read."""
    rank, size = dist.get_rank(), dist.get_world_size()
    x = filled(lab, 1_500_000, rank + 1)
    x = x.view(1_000, 1_500).t() if rank == 0 else x.view(1_500, 1_000)
    dist.all_reduce(x)
    expect(lab, x, size * (size + 1) // 2, "different strides")
    work: Any = dist.all_reduce(lab.empty(0, dtype=torch.float32), async_op=True)
    work.get_future().wait()
    work.wait()
    for count in (2, 1_200_000):
        pairs = filled(lab, 2 * count, rank + 1).view(count, 2)
        # c10d itself refuses conjugates, but not their imaginary parts, which torch negates when they are read.
        x = torch.view_as_complex(pairs).conj().imag if rank == 0 else lab.empty(count, dtype=torch.float32)
        assert x.is_neg() == (rank == 0)
        dist.broadcast(x, src=0)
        expect(lab, x, -1, ("negated when read", count))


class Bucket:
    """A gradient bucket as DDP hands it to a hook."""

    def __init__(self, index: int, buffer: torch.Tensor, *, last: bool) -> None:
        self._index, self._buffer, self._last = index, buffer, last
        self._parameters = [buffer]

    def index(self) -> int:
        return self._index

    def buffer(self) -> torch.Tensor:
        return self._buffer

    def parameters(self) -> list[torch.Tensor]:
        return self._parameters

    def is_last(self) -> bool:
        return self._last


def hook(lab: Lab) -> None:
    """Three buckets under way at once, in two types; their futures hold the averages in the buckets' own memory."""
    import mlt.torch

    rank, size = dist.get_rank(), dist.get_world_size()
    for dtype in (torch.float32, torch.bfloat16):
        state = mlt.torch.BoundedLossState(dist.group.WORLD, loss_bound=0.0)
        buckets = [Bucket(i, filled(lab, 300_000 + i, rank + i, dtype), last=i == 2) for i in range(3)]
        futures = [mlt.torch.bounded_loss_hook(state, bucket) for bucket in buckets]  # type: ignore[arg-type]
        for index, (bucket, future) in enumerate(zip(buckets, futures, strict=True)):
            result = future.wait()
            assert result.data_ptr() == bucket.buffer().data_ptr()
            expect(lab, result, (size - 1) / 2 + index, ("hook", index, dtype))
        (step,) = state.steps
        assert step.bytes == sum(bucket.buffer().nbytes for bucket in buckets), step


def shares(lab: Lab) -> None:
    """FSDP2's reduce-scatter with bounded loss, waited for at once and later."""
    import mlt.torch

    rank, size, group = dist.get_rank(), dist.get_world_size(), dist.group.WORLD
    assert group is not None
    reduce_scatter = mlt.torch.LossyReduceScatter(loss_bound=0.0)
    for dtype in (torch.float32, torch.bfloat16):
        for is_async in (False, True):
            whole, share = filled(lab, 30_000 * size, rank + 1, dtype), filled(lab, 30_000, 0, dtype)
            work = reduce_scatter(share, whole, group, dist.ReduceOp.AVG, is_async)
            if work is not None:
                work.wait()
            expect(lab, share, (size + 1) / 2, ("share", dtype, is_async))
            expect(lab, whole, rank + 1, ("input", dtype, is_async))
    assert [step.missing_bytes for step in reduce_scatter.steps] == [0] * 4


def all_checks(lab: Lab) -> list[str]:
    """Runs all; the names of what passed."""
    done = []
    for check in (sums, copies, mixed, futures, completion, layouts, hook, shares):
        check(lab)
        done.append(check.__name__)
    return done
