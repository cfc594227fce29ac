"""Calls that differ from rank to rank, unusual tensors and starts: the programs of ``test_torch_bad_input.py``."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import mlt.torch
import torch
import torch.distributed as dist
from job_program import error_of
from torch.distributed.device_mesh import init_device_mesh

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def summed(group: Any = None) -> float:
    dist.all_reduce(x := torch.ones(1), group=group)
    return x.item()


def moved(verb: str, dtype: torch.dtype) -> Callable[[], Any]:
    """A call of a verb that combines nothing, with five elements of each rank."""
    one, many = torch.ones(5, dtype=dtype), [torch.ones(5, dtype=dtype) for _ in range(SIZE)]
    at_root = many if RANK == 0 else None
    return {
        "broadcast": lambda: dist.broadcast(one, 0),
        "gather": lambda: dist.gather(one, at_root, 0),
        "scatter": lambda: dist.scatter(one, at_root, 0),
        "all_gather": lambda: dist.all_gather(many, one),
        "all_gather_into_tensor": lambda: dist.all_gather_into_tensor(torch.cat(many), one),
        "all_to_all": lambda: dist.all_to_all([part.clone() for part in many], many),
        "all_to_all_single": lambda: dist.all_to_all_single(torch.cat(many), torch.cat(many)),
    }[verb]


def mismatches() -> Any:
    """Rank 0 makes the first call of each pair, the others the second; the error, its time, and whether the next call
    is right."""
    dist.init_process_group("mlt")
    x = torch.ones(5)
    pairs: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
        "SUM, MAX": (lambda: dist.all_reduce(x), lambda: dist.all_reduce(x, op=dist.ReduceOp.MAX)),
        "all_reduce, broadcast": (lambda: dist.all_reduce(x), lambda: dist.broadcast(x, 0)),
        "all_reduce, barrier": (lambda: dist.all_reduce(x), dist.barrier),
        "roots": (lambda: dist.broadcast(x, 0), lambda: dist.broadcast(x, 1)),
        "float32, float64": (lambda: dist.all_reduce(x), lambda: dist.all_reduce(x.double())),
        "5, 6 elements": (lambda: dist.all_reduce(x), lambda: dist.all_reduce(torch.ones(6))),
    }
    moving = ("broadcast", "gather", "scatter", "all_gather", "all_gather_into_tensor", "all_to_all")
    for verb in (*moving, "all_to_all_single"):
        pairs[f"{verb} of float32, int32"] = moved(verb, torch.float32), moved(verb, torch.int32)
    pairs["5, 0 elements"] = (lambda: dist.all_reduce(x), lambda: dist.all_reduce(torch.ones(0)))
    told = {}
    for name, calls in pairs.items():
        begun = time.monotonic()
        error = error_of(calls[min(RANK, 1)])
        told[name] = {"error": error, "seconds": time.monotonic() - begun}
        if name != "5, 0 elements":
            told[name]["next"] = summed()
    os._exit(print(json.dumps(told), flush=True) or 0)


def bools() -> Any:
    """Every reduction of bool in every verb that reduces; the wrong ones, and the error of a mean."""
    dist.init_process_group("mlt")
    op = dist.ReduceOp
    expected = {
        op.SUM: any, op.MAX: any, op.BOR: any,
        op.PRODUCT: all, op.MIN: all, op.BAND: all,
        op.BXOR: lambda bits: sum(bits) % 2 == 1,
    }  # fmt: skip
    # All ranks have False, one True, all but one, all.
    table = torch.tensor([[rank >= SIZE - count for count in range(SIZE + 1)] for rank in range(SIZE)])
    wrong = []
    for operation, combine in expected.items():
        whole = [combine(column.tolist()) for column in table.t()]
        dist.all_reduce(x := table[RANK].clone(), op=operation)
        dist.reduce(y := table[RANK].clone(), 0, op=operation)
        dist.reduce_scatter_tensor(z := torch.zeros(SIZE + 1, dtype=torch.bool), table[RANK].repeat(SIZE), op=operation)
        wrong += [str(operation)] * (x.tolist() != whole or (RANK == 0 and y.tolist() != whole) or z.tolist() != whole)
    dist.broadcast(x := table[RANK].clone(), SIZE - 1)
    if x.tolist() != table[SIZE - 1].tolist():
        wrong.append("broadcast")
    return {"wrong": wrong, "mean": error_of(lambda: dist.all_reduce(table[0], op=op.AVG)), "next": summed()}


def empties() -> Any:
    """Each verb with tensors of no elements, at once and asynchronous; then with some empty parts."""
    dist.init_process_group("mlt")
    zero, none, everyone = torch.zeros(0, 3), torch.zeros(0), range(SIZE)
    verbs: dict[str, Callable[..., Any]] = {
        "all_reduce": lambda **how: dist.all_reduce(zero, **how),
        "all_reduce AVG int": lambda **how: dist.all_reduce(zero.int(), op=dist.ReduceOp.AVG, **how),
        "reduce": lambda **how: dist.reduce(zero, 0, **how),
        "broadcast": lambda **how: dist.broadcast(zero, 0, **how),
        "all_gather": lambda **how: dist.all_gather([zero.clone() for _ in everyone], zero, **how),
        "all_gather_into_tensor": lambda **how: dist.all_gather_into_tensor(none, none.clone(), **how),
        "gather": lambda **how: dist.gather(zero, [zero.clone() for _ in everyone] if RANK == 0 else None, **how),
        "scatter": lambda **how: dist.scatter(zero, [zero.clone() for _ in everyone] if RANK == 0 else None, **how),
        "reduce_scatter": lambda **how: dist.reduce_scatter(zero, [zero.clone() for _ in everyone], **how),
        "reduce_scatter_tensor": lambda **how: dist.reduce_scatter_tensor(none, none.clone(), **how),
        "all_to_all": lambda **how: dist.all_to_all([none.clone() for _ in everyone], [none for _ in everyone], **how),
        "all_to_all_single": lambda **how: dist.all_to_all_single(none, none.clone(), **how),
    }
    errors = {}
    for name, verb in verbs.items():
        errors[name] = error_of(verb)
        errors[f"{name}, async"] = error_of(lambda verb=verb: verb(async_op=True).wait())
    errors["all_reduce_coalesced"] = error_of(lambda: dist.all_reduce_coalesced([zero, torch.ones(2), none]))
    errors["sparse"] = error_of(
        lambda: dist.all_reduce(torch.sparse_coo_tensor(torch.zeros(1, 0), [], (4,), check_invariants=True))
    )
    other = (RANK + 1) % SIZE
    works = [dist.isend(none, other), dist.irecv(none.clone(), (RANK - 1) % SIZE)]
    errors["send, recv"] = error_of(lambda: [work.wait() for work in works])
    # Rank 0 has nothing to give.
    found = [torch.full((rank,), -1.0) for rank in everyone]
    dist.all_gather(found, torch.full((RANK,), float(RANK)))
    arrived = torch.full((sum(everyone),), -1.0)
    dist.all_to_all_single(arrived, torch.full((RANK * SIZE,), float(RANK)), list(everyone), [RANK] * SIZE)
    share = torch.zeros(RANK)
    dist.reduce_scatter(share, [torch.ones(rank) for rank in everyone])
    wanted = [float(rank) for rank in everyone for _ in range(rank)]
    right = torch.cat(found).tolist() == arrived.tolist() == wanted and share.tolist() == [float(SIZE)] * RANK
    return {"errors": {name: error for name, error in errors.items() if error}, "right": right, "next": summed()}


def means_of_complex() -> Any:
    """The mean of complex tensors in every verb that reduces, with a strided one; the wrong ones."""
    dist.init_process_group("mlt")
    wrong = []
    for dtype in (torch.complex64, torch.complex128):
        mean = complex((SIZE - 1) / 2, 2.0)
        own = torch.full((6,), complex(RANK, 2.0), dtype=dtype)
        dist.all_reduce(x := own.clone(), op=dist.ReduceOp.AVG)
        dist.all_reduce(z := own.clone().reshape(2, 3).t(), op=dist.ReduceOp.AVG)
        dist.reduce(r := own.clone(), 0, op=dist.ReduceOp.AVG)
        dist.reduce_scatter_tensor(s := torch.zeros(6, dtype=dtype), own.repeat(SIZE), op=dist.ReduceOp.AVG)
        found = {"all_reduce": x, "strided": z.flatten(), "reduce_scatter": s, "reduce": r if RANK == 0 else x}
        wrong += [f"{name} {dtype}" for name, one in found.items() if one.tolist() != [mean] * 6]
    return {"wrong": wrong, "next": summed()}


def cpu_alone() -> Any:
    dist.init_process_group("cpu:mlt")
    group = dist.new_group()
    return {"sums": [summed(), summed(group)], "backend": dist.get_backend_config()}


def twice() -> Any:
    """The error of a second init, a call after it, and the same again after the end."""
    told = []
    for _ in range(2):
        dist.init_process_group("mlt")
        error = error_of(lambda: dist.init_process_group("mlt"))
        told.append({"error": error, "sum": summed()})
        dist.destroy_process_group()
    return told


def options_of_groups() -> Any:
    """The loss bounds of groups that ``new_subgroups`` and a mesh make, and sums in them."""
    dist.init_process_group("mlt")
    options = mlt.torch.Options(loss_bound=0.1)
    own, _ = dist.new_subgroups(2, pg_options=options)
    mesh = init_device_mesh(
        "cpu",
        (SIZE // 2, 2),
        mesh_dim_names=("dp", "tp"),
        backend_override={"dp": mlt.torch.Options(loss_bound=0.2), "tp": ("mlt", mlt.torch.Options(loss_bound="5%"))},
    )
    groups = [own, mesh.get_group("dp"), mesh.get_group("tp"), dist.group.WORLD]
    wrong = error_of(lambda: init_device_mesh("cpu", (SIZE,), mesh_dim_names=("x",), backend_override={"x": "gpu"}))
    return {
        "bounds": [mlt_group.options.loss_bound for mlt_group in groups],  # type: ignore[union-attr]
        "sums": [summed(group) for group in groups],
        "wrong": wrong,
    }


def main() -> None:
    program, options = sys.argv[1], json.loads(sys.argv[2])
    torch.set_num_threads(1)
    answer = globals()[program](**options)
    if dist.is_initialized():
        dist.destroy_process_group()
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
