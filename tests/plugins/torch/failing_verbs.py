"""Every collective of c10d before and after a failure: what ``programs.py`` runs for ``test_failures.py``."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from job_program import runtime_error_of

PATIENCE = timedelta(seconds=60)
SOON = timedelta(seconds=1)
LONG = 100_000
COLLECTIVES = {"all_reduce, coalesced": 2, "reduce_scatter, uneven": 3}  # of the transport; of the others one


def calls(group: Any) -> dict[str, Callable[[], list[torch.Tensor]]]:
    """Every verb as a function that calls it with new tensors, and returns pairs that must be equal."""
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    everyone, total = range(size), float(sum(range(size)))

    def mine(count: int) -> torch.Tensor:
        return torch.full((count,), float(rank))

    def of(values: Any, count: int) -> list[torch.Tensor]:
        return [torch.full((count,), float(value)) for value in values]

    def all_reduce(count: int) -> list[torch.Tensor]:
        dist.all_reduce(x := mine(count), group=group)
        return [x, *of([total], count)]

    def coalesced() -> list[torch.Tensor]:
        dist.all_reduce_coalesced(many := [mine(3), mine(LONG), mine(4)], group=group)
        return [torch.cat(many), *of([total], 7 + LONG)]

    def sparse() -> list[torch.Tensor]:
        dist.all_reduce(x := torch.sparse_coo_tensor([[0]], [1.0], (4,)), group=group)
        return [x.to_dense(), torch.tensor([float(size), 0.0, 0.0, 0.0])]

    def reduce() -> list[torch.Tensor]:
        dist.reduce(x := mine(5), 0, group=group)
        return [x, *of([total if rank == 0 else rank], 5)]

    def broadcast() -> list[torch.Tensor]:
        dist.broadcast(x := mine(5), 0, group=group)
        return [x, torch.zeros(5)]

    def reduce_scatter(*, is_even: bool) -> list[torch.Tensor]:
        sizes = [3 if is_even else 3 + one for one in everyone]
        dist.reduce_scatter(x := torch.zeros(sizes[rank]), [torch.ones(one) for one in sizes], group=group)
        return [x, *of([size], sizes[rank])]

    def reduce_scatter_tensor() -> list[torch.Tensor]:
        dist.reduce_scatter_tensor(x := torch.zeros(3), torch.ones(3 * size), group=group)
        return [x, *of([size], 3)]

    def all_gather(sizes: list[int]) -> list[torch.Tensor]:
        found = [torch.zeros(one) for one in sizes]
        dist.all_gather(found, mine(sizes[rank]), group=group)
        return [torch.cat(found), torch.cat([torch.full((sizes[one],), float(one)) for one in everyone])]

    def all_gather_into_tensor() -> list[torch.Tensor]:
        dist.all_gather_into_tensor(x := torch.zeros(3 * size), mine(3), group=group)
        return [x, torch.cat(of(everyone, 3))]

    def gather() -> list[torch.Tensor]:
        found = of([-1] * size, 3) if rank == 0 else None
        dist.gather(mine(3), found, 0, group=group)
        return [torch.cat(found), torch.cat(of(everyone, 3))] if found else [torch.zeros(1), torch.zeros(1)]

    def scatter() -> list[torch.Tensor]:
        dist.scatter(x := torch.zeros(3), of(everyone, 3) if rank == 0 else None, 0, group=group)
        return [x, mine(3)]

    def all_to_all() -> list[torch.Tensor]:
        dist.all_to_all(found := of([-1] * size, 3), [mine(3)] * size, group=group)
        return [torch.cat(found), torch.cat(of(everyone, 3))]

    def all_to_all_single() -> list[torch.Tensor]:
        dist.all_to_all_single(x := torch.zeros(2 * size), mine(2 * size), group=group)
        return [x, torch.cat(of(everyone, 2))]

    def barrier() -> list[torch.Tensor]:
        dist.barrier(group=group)
        return [torch.zeros(1), torch.zeros(1)]

    return {
        "all_reduce": lambda: all_reduce(5),
        "all_reduce, long": lambda: all_reduce(LONG),
        "all_reduce, coalesced": coalesced,
        "all_reduce, sparse": sparse,
        "reduce": reduce,
        "broadcast": broadcast,
        "reduce_scatter": lambda: reduce_scatter(is_even=True),
        "reduce_scatter, uneven": lambda: reduce_scatter(is_even=False),
        "reduce_scatter_tensor": reduce_scatter_tensor,
        "all_gather": lambda: all_gather([3] * size),
        "all_gather, long": lambda: all_gather([LONG] * size),
        "all_gather, uneven": lambda: all_gather([3 + one for one in everyone]),
        "all_gather_into_tensor": all_gather_into_tensor,
        "gather": gather,
        "scatter": scatter,
        "all_to_all": all_to_all,
        "all_to_all_single": all_to_all_single,
        "barrier": barrier,
    }


def barriers(group: Any, count: int) -> Callable[[], None]:
    """Starts as many, and waits for all: the next call is made when none is under way, as after any other call."""

    def call() -> None:
        works = [dist.barrier(group, async_op=True) for _ in range(count)]
        for error in [runtime_error_of(work.wait) for work in works]:
            if error:
                raise RuntimeError(error)

    return call


def failures(failure: str) -> dict[str, dict[str, Any]]:
    """For each verb the error of a call of which rank 1 makes another, or none ("mismatch", "timeout"), and what the
    next call of that group raised; whether its result was right."""
    rank, store = dist.get_rank(), dist.distributed_c10d._get_default_store()
    told = {}
    for verb in calls(dist.group.WORLD):
        group = dist.new_group(timeout=PATIENCE)
        call = calls(group)[verb]
        if failure == "timeout" and rank != 1:
            group.set_timeout(SOON)
        wrong = call
        if failure == "mismatch" and rank == 1:
            wrong = calls(group)["all_reduce"] if verb == "barrier" else barriers(group, COLLECTIVES.get(verb, 1))
        if failure == "timeout" and rank == 1:
            store.wait([f"{verb} failed at {other}" for other in (0, 2)], PATIENCE)
        error = runtime_error_of(wrong)
        store.set(f"{verb} failed at {rank}", "")
        group.set_timeout(PATIENCE)
        found: list[torch.Tensor] = []
        next_error = runtime_error_of(lambda call=call, found=found: found.extend(call()))
        told[verb] = {"error": error, "next": next_error, "right": bool(found) and torch.equal(*found)}
        dist.destroy_process_group(group)
    return told


def death() -> dict[str, dict[str, Any]]:
    """Rank 2 is killed; for each verb the errors of two calls of a group with it, and whether the survivors' group
    works."""
    rank = dist.get_rank()
    with_victim = {verb: dist.new_group(timeout=PATIENCE) for verb in calls(dist.group.WORLD)}
    survivors = dist.new_group([0, 1], timeout=PATIENCE)
    for group in with_victim.values():
        dist.barrier(group=group)
    if rank == 2:
        print("kill me", flush=True)
        time.sleep(60)  # killed before that
    told = {}
    for verb, group in with_victim.items():
        call = calls(group)[verb]
        errors = [runtime_error_of(call), runtime_error_of(call)]
        dist.barrier(group=survivors)
        told[verb] = {"errors": errors, "right": torch.equal(*calls(survivors)[verb]())}
    return told
