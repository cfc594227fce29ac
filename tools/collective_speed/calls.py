"""The calls that are timed: each verb by each transport, on tensors of the same size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

VERBS = (
    "all_reduce", "reduce_scatter", "reduce", "all_gather", "gather", "scatter", "broadcast", "all_to_all", "barrier",
)  # fmt: skip
# Each rank has a part of the tensor; in the others every rank has all of it.
WITH_PARTS = frozenset({"reduce_scatter", "all_gather", "gather", "scatter", "all_to_all"})
Call = Callable[[], object]


def elements(verb: str, size: int, ranks: int) -> tuple[int, int]:
    """float32 elements of one rank's part and of the whole tensor of ``size`` bytes.

    >>> elements("all_gather", 4096, 4), elements("all_reduce", 4096, 4), elements("gather", 4, 2)
    ((256, 1024), (1024, 1024), (1, 2))
    """
    parts = ranks if verb in WITH_PARTS else 1
    part = max(1, size // 4 // parts)
    return part, part * parts


def of_mlt(verb: str, size: int, context: Any) -> Call:
    import numpy as np

    import mlt

    part, whole = elements(verb, size, context.world_size)
    one, all_ = np.ones(part, np.float32), np.ones(whole, np.float32)
    at_root = all_ if context.rank == 0 else None
    other = np.ones_like(all_)
    op = mlt.Reduction.MAX  # values that do not grow from call to call
    calls: dict[str, Call] = {
        "all_reduce": lambda: context.all_reduce(all_, op=op),
        "reduce_scatter": lambda: context.reduce_scatter(one, all_, op=op),
        "reduce": lambda: context.reduce(one, at_root, op=op),
        "all_gather": lambda: context.all_gather(all_, one),
        "gather": lambda: context.gather(one, at_root),
        "scatter": lambda: context.scatter(one, at_root),
        "broadcast": lambda: context.broadcast(all_),
        "all_to_all": lambda: context.all_to_all(other, all_),
        "barrier": context.barrier,
    }
    return calls[verb]


def of_gloo(verb: str, size: int, dist: Any) -> Call:
    import torch

    ranks, is_root = dist.get_world_size(), dist.get_rank() == 0
    part, whole = elements(verb, size, ranks)
    one, all_ = torch.ones(part), torch.ones(whole)
    chunks = list(all_.chunk(ranks)) if is_root and verb in WITH_PARTS else None
    other = torch.ones_like(all_)
    op = dist.ReduceOp.MAX
    calls: dict[str, Call] = {
        "all_reduce": lambda: dist.all_reduce(all_, op),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(one, all_, op),
        "reduce": lambda: dist.reduce(one, 0, op),
        "all_gather": lambda: dist.all_gather_into_tensor(all_, one),
        "gather": lambda: dist.gather(one, chunks, 0),
        "scatter": lambda: dist.scatter(one, chunks, 0),
        "broadcast": lambda: dist.broadcast(all_, 0),
        "all_to_all": lambda: dist.all_to_all_single(other, all_),
        "barrier": dist.barrier,
    }
    return calls[verb]


def of_mpi(verb: str, size: int, mpi: Any) -> Call:
    import numpy as np

    world = mpi.COMM_WORLD
    part, whole = elements(verb, size, world.Get_size())
    one, all_ = np.ones(part, np.float32), np.ones(whole, np.float32)
    at_root = all_ if world.Get_rank() == 0 else None
    other = np.ones_like(all_)
    calls: dict[str, Call] = {
        "all_reduce": lambda: world.Allreduce(mpi.IN_PLACE, all_, mpi.MAX),
        "reduce_scatter": lambda: world.Reduce_scatter_block(all_, one, mpi.MAX),
        "reduce": lambda: world.Reduce(one, at_root, mpi.MAX),
        "all_gather": lambda: world.Allgather(one, all_),
        "gather": lambda: world.Gather(one, at_root),
        "scatter": lambda: world.Scatter(at_root, one),
        "broadcast": lambda: world.Bcast(all_),
        "all_to_all": lambda: world.Alltoall(all_, other),
        "barrier": world.Barrier,
    }
    return calls[verb]
