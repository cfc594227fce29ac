"""Groups with options, on networks that lose packets: the programs of ``test_group_options.py``."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from functools import partial
from typing import Any

import mlt.torch
import torch
import torch.distributed as dist
from job_program import error_of

import mlt

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
ELEMENTS = 1 << 20


def short(tensor: torch.Tensor, expected: float) -> float:
    """The share of the elements that lack a term; no element may have more than all of them."""
    assert float(tensor.max()) <= expected, (tensor.max(), expected)
    return float((tensor < expected).double().mean())


def ones(dtype: torch.dtype = torch.float32, count: int = ELEMENTS) -> torch.Tensor:
    return torch.ones(count, dtype=dtype)


def calls(group: dist.ProcessGroup) -> dict[str, float]:
    """The share of short elements of each call; each sums a one of every rank, or moves ones."""
    told = {}

    def all_reduce(tensor: torch.Tensor, expected: float = SIZE, **options: Any) -> float:
        dist.all_reduce(tensor, group=group, **options)
        return short(tensor, expected)

    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
        told[f"all_reduce {dtype}"] = all_reduce(ones(dtype))
    later = ones()
    dist.all_reduce(later, group=group, async_op=True).wait()
    told["all_reduce later"] = short(later, SIZE)
    # Each rank's own part of a reduce-scatter, whole and as a list of parts.
    part = torch.zeros(ELEMENTS)
    dist.reduce_scatter_tensor(part, ones(count=SIZE * ELEMENTS), group=group)
    told["reduce_scatter_tensor"] = short(part, SIZE)
    part = torch.zeros(ELEMENTS)
    dist.reduce_scatter(part, [ones() for _ in range(SIZE)], group=group)
    told["reduce_scatter"] = short(part, SIZE)
    # A rank that misses terms gives its own their weight.
    mean = ones()
    dist.all_reduce(mean, group=group, op=dist.ReduceOp.AVG)
    assert bool(mean.isclose(torch.tensor(1.0)).all())

    told["exact: one element"] = all_reduce(ones(count=1))
    for dtype in (torch.int32, torch.int64, torch.uint8):
        told[f"exact: all_reduce {dtype}"] = all_reduce(ones(dtype))
    product = torch.full((ELEMENTS,), 2.0)
    told["exact: product"] = all_reduce(product, 2.0**SIZE, op=dist.ReduceOp.PRODUCT)
    maximum = torch.full((ELEMENTS,), float(RANK))
    told["exact: maximum"] = all_reduce(maximum, SIZE - 1, op=dist.ReduceOp.MAX)
    root = ones()
    dist.reduce(root, 0, group=group)
    told["exact: reduce"] = short(root, SIZE if RANK == 0 else 1)
    sent = ones() * (RANK == 0)
    dist.broadcast(sent, 0, group=group)
    told["exact: broadcast"] = short(sent, 1)
    gathered = torch.zeros(SIZE * ELEMENTS)
    dist.all_gather_into_tensor(gathered, ones(), group=group)
    told["exact: all_gather"] = short(gathered, 1)
    with mlt.torch.lossy(0.0):
        told["exact: lossy(0.0)"] = all_reduce(ones())
    told["digest"] = float(later.double().cumsum(0).sum())  # the same bits on every rank
    return told


def lossy_default_group(bound: str) -> Any:
    options = mlt.torch.Options(loss_bound=bound)
    dist.init_process_group("mlt", pg_options=options)
    plain = dist.new_group()
    told: dict[str, Any] = {"with": calls(dist.group.WORLD), "without": calls(plain)}
    told["losses"] = asdict(options.losses)
    with mlt.torch.lossy(0.2):  # without options of its own, as ever
        dist.all_reduce(inside := ones(), group=plain)
    return told | {"lossy": short(inside, SIZE)}


def lossy_new_group(bound: float) -> Any:
    dist.init_process_group("mlt")
    options = mlt.torch.Options(loss_bound=bound)
    group = dist.new_group(backend="mlt", pg_options=options)
    assert group.options.loss_bound == bound
    told = {"with": calls(group), "without": calls(dist.group.WORLD)}
    return told | {"losses": asdict(options.losses)}


def lossy_results_of_a_group() -> Any:
    """Whether the results of these all-reduces may lose: of the group, of integers, within lossy(0.1), within
    lossy(0.1, lossy_results=True), of a group without options."""
    dist.init_process_group("mlt")
    options = mlt.torch.Options(loss_bound=0.2, lossy_results=True)
    group, plain = dist.new_group(backend="mlt", pg_options=options), dist.new_group(backend="mlt")
    context, posted = mlt.torch.current_context(), []
    post = context.post_all_reduce

    def all_reduce(*arguments: Any, **named: Any) -> Any:
        posted.append(named["lossy_results"])
        return post(*arguments, **named)

    context.post_all_reduce = all_reduce  # type: ignore[method-assign]
    dist.all_reduce(ones(), group=group)
    dist.all_reduce(ones(torch.int32), group=group)
    with mlt.torch.lossy(0.1):
        dist.all_reduce(ones(), group=group)
    with mlt.torch.lossy(0.1, lossy_results=True):
        dist.all_reduce(ones(), group=plain)
    dist.all_reduce(ones(), group=plain)
    dist.reduce_scatter_tensor(torch.zeros(4), ones(count=4 * SIZE), group=group)
    return {"posted": posted, "reductions": options.losses.reductions}


def checked() -> Any:
    dist.init_process_group("mlt", pg_options=mlt.torch.Options(checksums=True))
    group = dist.new_group(pg_options=mlt.torch.Options(checksums=True))
    dist.all_reduce(x := torch.ones(3), group=group)
    error = error_of(lambda: dist.new_group(backend="mlt", pg_options=mlt.torch.Options(checksums=False)))
    return {"checksums": mlt.torch.current_context().checksums, "sum": x.tolist(), "error": error}


def refused() -> Any:
    """Options that are rejected before a rank waits for another or writes for it. Then all make a group."""
    told = []
    for given in ({"loss_bound": 0.1}, "1%", torch._C._distributed_c10d.Backend.Options("mlt")):
        store = dist.HashStore()  # of this process alone
        start = partial(dist.init_process_group, "mlt", store=store, rank=RANK, world_size=SIZE, pg_options=given)
        told.append(error_of(start))
        assert store.num_keys() == 0
        assert not dist.is_initialized()
    dist.init_process_group("mlt")
    told.append(error_of(lambda: dist.new_group(backend="mlt", pg_options=0.1)))
    group = dist.new_group(pg_options=mlt.torch.Options(loss_bound=0.1))
    dist.all_reduce(x := torch.ones(3), group=group)
    differs = dist.new_group(pg_options=mlt.torch.Options(loss_bound=0.1 * RANK))
    return {"errors": told, "sum": x.tolist(), "differs": error_of(lambda: dist.all_reduce(x, group=differs))}


def main() -> None:
    program, options = sys.argv[1], json.loads(sys.argv[2])
    torch.set_num_threads(1)
    drop = options.pop("drop", 0.0)
    if not drop:
        answer = globals()[program](**options)
        dist.destroy_process_group()
    else:
        faults = mlt.Faults(drop=drop, seed=7 + RANK)
        # There are as many packets as on an Ethernet.
        with mlt.Context(RANK, SIZE, 0, faults=faults, segment_bytes=1_432) as context:
            mlt.torch.use_context(context)
            answer = globals()[program](**options)
            dist.destroy_process_group()
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
