"""Forms of DDP that the hook goes with, each beside the same training over gloo: programs of ``test_hook_forms.py``."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import mlt.torch
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

import mlt

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
WORDS, WIDTH = 600, 64


class Tables(nn.Module):
    """Sums of rows of two tables, whose gradients are sparse. ``head``: with a dense layer on top."""

    def __init__(self, *, sparse: bool = True, head: bool = True) -> None:
        super().__init__()
        self.first = nn.Embedding(WORDS, WIDTH, sparse=sparse)
        self.second = nn.Embedding(WORDS, WIDTH, sparse=sparse)
        self.head = nn.Linear(WIDTH, 3) if head else nn.Identity()

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        both = self.first(words).sum(0) * self.second(words).sum(0)
        return self.head(both / 400)  # type: ignore[no-any-return]


def sentences(count: int) -> list[torch.Tensor]:
    """This rank's words of each step: some twice, and none at all on one rank of the second step."""
    generator = torch.Generator().manual_seed(RANK)
    found = [torch.randint(WORDS, (400,), generator=generator) for _ in range(count)]
    if RANK == 1:
        found[1] = found[1][:0]
    return found


def rows(count: int, width: int = 64, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(RANK)
    return [torch.randn(8, width, generator=generator).to(dtype) for _ in range(count)]


def layers(width: int = 64) -> nn.Module:
    """Several buckets of one megabyte for a width of 512."""
    return nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 4))


def hooked(**options: Any) -> Callable[[DistributedDataParallel], Any]:
    def register(replica: DistributedDataParallel) -> Any:
        state = mlt.torch.BoundedLossState(dist.group.WORLD, **options)
        replica.register_comm_hook(state, mlt.torch.bounded_loss_hook)
        return state

    return register


def train(
    make: Callable[[], nn.Module],
    inputs: Sequence[torch.Tensor],
    register: Callable[[DistributedDataParallel], Any] = lambda replica: None,
    group: Any = None,
    *,
    join: bool = False,
    divide_by_all: bool = True,
    accumulate: int = 1,
    dtype: torch.dtype = torch.float32,
    learning_rate: float = 0.05,
) -> tuple[torch.Tensor, Any]:
    """A training with DDP, synchronised in every ``accumulate``-th step: the parameters at its end as one tensor, and
    the hook's state."""
    torch.manual_seed(0)
    model = make().to(dtype)
    replica = DistributedDataParallel(model, process_group=group, bucket_cap_mb=0.5)
    state = register(replica)
    optimizer = torch.optim.SGD(replica.parameters(), lr=learning_rate)
    with replica.join(divide_by_initial_world_size=divide_by_all) if join else nullcontext():
        for step, batch in enumerate(inputs):
            is_last = (step + 1) % accumulate == 0
            with nullcontext() if is_last else replica.no_sync():
                replica(batch).square().mean().backward()
            if is_last:
                optimizer.step()
                optimizer.zero_grad()
    return torch.cat([one.detach().reshape(-1) for one in model.parameters()]), state


def digest(tensor: torch.Tensor) -> str:
    return hashlib.sha256(tensor.view(torch.uint8).numpy().tobytes()).hexdigest()


def difference(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one.double() - other.double()).norm() / other.double().norm())


def figures(state: Any) -> list[dict[str, int]]:
    return [
        {"step": one.step, "buckets": one.buckets, "bytes": one.bytes, "missing": one.missing_bytes}
        for one in state.steps
    ]


def sparse(gloo: Any) -> Any:
    """Tables alone, and below a dense layer, without the hook and with it. Without dense gradients nothing may be
    lost, whatever the bound."""
    words = sentences(4)
    told: dict[str, Any] = {}
    for name, head, bound in (("tables", False, 0.5), ("with head", True, 0.0)):

        def make(head: bool = head) -> nn.Module:
            return Tables(head=head)

        expected, _ = train(make, words, group=gloo)
        plain, _ = train(make, words)
        averaged, state = train(make, words, hooked(loss_bound=bound))
        told[name] = {
            "gloo": digest(expected),
            "plain": digest(plain),
            "hook": digest(averaged),
            "difference": difference(averaged, expected),
            "steps": figures(state),
            "rows": [len(one.unique()) for one in words],
        }
    dense, _ = train(lambda: Tables(sparse=False), words, group=gloo)
    told["dense"] = difference(averaged, dense)
    return told


def sparse_failure(gloo: Any) -> Any:
    """A rank whose table has another width: the errors of all name the bucket and both shapes; calls after it work."""
    replica = DistributedDataParallel(Tables(head=False))
    names = replica.module.named_parameters()
    state = mlt.torch.BoundedLossState(dist.group.WORLD, named_parameters=names)

    def hook(state: mlt.torch.BoundedLossState, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        if RANK == 1:
            bucket.set_buffer(torch.sparse_coo_tensor([[0]], torch.ones(1, 5), (WORDS, 5)))
        return mlt.torch.bounded_loss_hook(state, bucket)

    hook.__annotations__["bucket"], hook.__annotations__["return"] = dist.GradBucket, torch.futures.Future[torch.Tensor]
    replica.register_comm_hook(state, hook)
    error = ""
    try:
        replica(torch.tensor([1, 2])).sum().backward()
    except RuntimeError as raised:
        error = str(raised)
    dist.all_reduce(after := torch.ones(3))
    return {"error": error, "after": after.tolist()}


def sparse_on_one_rank(gloo: Any) -> Any:
    """A rank whose table has sparse gradients, another whose table has dense ones; calls after the error work."""

    def hook(state: mlt.torch.BoundedLossState, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        if RANK == 0:
            bucket.set_buffer(torch.zeros(WORDS * WIDTH))
        return mlt.torch.bounded_loss_hook(state, bucket)

    hook.__annotations__["bucket"], hook.__annotations__["return"] = dist.GradBucket, torch.futures.Future[torch.Tensor]
    return two_failures(Tables(sparse=True, head=False), hook)


def sparse_layers_on_one_rank(gloo: Any) -> Any:
    """The same, where the layers differ, so that DDP makes other buckets of them."""
    return two_failures(Tables(sparse=RANK == 1), mlt.torch.bounded_loss_hook)


def sparse_layers_below_a_large_one(gloo: Any) -> Any:
    """The same, where the first bucket is alike."""
    model = Tables(sparse=RANK == 1)
    model.head = nn.Linear(WIDTH, 5_000)
    return two_failures(model, mlt.torch.bounded_loss_hook)


def two_failures(model: nn.Module, hook: Any) -> Any:
    """The errors of two attempts with one state, after which calls of the group work."""
    state = mlt.torch.BoundedLossState(dist.group.WORLD, named_parameters=model.named_parameters())
    errors, started = [], time.monotonic()
    for _ in range(2):
        replica = DistributedDataParallel(model)  # one whose backward pass failed makes no other step
        replica.register_comm_hook(state, hook)
        try:
            replica(torch.tensor([1, 2])).sum().backward()
        except RuntimeError as raised:
            errors.append(str(raised))
    seconds = time.monotonic() - started
    dist.all_reduce(after := torch.ones(3))
    return {"errors": errors, "seconds": seconds, "after": after.tolist()}


def joined(gloo: Any) -> Any:
    """Ranks with different numbers of batches inside ``join()``."""
    inputs = rows(3 + 2 * RANK)
    expected, _ = train(layers, inputs, group=gloo, join=True)
    averaged, state = train(layers, inputs, hooked(loss_bound=0.0), join=True)
    divided, _ = train(layers, inputs, hooked(loss_bound=0.0), join=True, divide_by_all=False)
    told = {"gloo": digest(expected), "hook": digest(averaged), "divided": digest(divided)}
    # Without the hook, by the number of ranks that have a batch.
    of_gloo, _ = train(layers, inputs, group=gloo, join=True, divide_by_all=False)
    plain, _ = train(layers, inputs, join=True, divide_by_all=False)
    return {**told, "steps": figures(state), "by those that are left": [digest(of_gloo), digest(plain)]}


def joined_sparse(gloo: Any) -> Any:
    words = sentences(3 + 2 * RANK)
    expected, _ = train(Tables, words, group=gloo, join=True)
    averaged, _ = train(Tables, words, hooked(loss_bound=0.0), join=True)
    return {"gloo": digest(expected), "hook": digest(averaged)}


def accumulated(gloo: Any) -> Any:
    """Gradients of three batches before each synchronisation (``no_sync``), of dense and of sparse parameters."""
    told = {}
    for name, make, inputs in (("layers", layers, rows(6)), ("tables", Tables, sentences(6))):
        expected, _ = train(make, inputs, group=gloo, accumulate=3)
        averaged, state = train(make, inputs, hooked(loss_bound=0.0), accumulate=3)
        told[name] = {"gloo": digest(expected), "hook": digest(averaged), "steps": len(state.steps)}
    return told


def types(gloo: Any) -> Any:
    """Gradients of each type that the hook averages, reliable and with a bound."""
    told = {}
    for dtype in (torch.float64, torch.float16, torch.bfloat16):
        inputs = rows(4, dtype=dtype)
        expected, _ = train(layers, inputs, group=gloo, dtype=dtype)
        averaged, _ = train(layers, inputs, hooked(loss_bound=0.0), dtype=dtype)
        bounded, state = train(
            lambda: layers(512), rows(4, 512, dtype), hooked(loss_bound=0.2), dtype=dtype, learning_rate=0.01
        )
        told[str(dtype)] = {
            "gloo": digest(expected),
            "hook": digest(averaged),
            "difference": difference(averaged, expected),
            "bounded": digest(bounded),
            "missing": sum(one.missing_bytes for one in state.steps),
            "largest": max(one.loss_fraction for one in state.steps),
        }
    return told


def bf16_by_hand(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    return default_hooks.bf16_compress_hook(state, bucket)


def power_sgd_in_turn(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """PowerSGD makes its all-reduces in callbacks: those of several buckets at once have no common order."""
    future = powerSGD_hook(state, bucket)
    future.wait()
    return future


# DDP compares the annotations with the real types, not with their names.
for one in (bf16_by_hand, power_sgd_in_turn):
    one.__annotations__.update({"bucket": dist.GradBucket, "return": torch.futures.Future[torch.Tensor]})


def stacked(gloo: Any) -> Any:
    """The compression hooks of torch around ours and over ours' losses; each beside its own result over gloo."""
    told: dict[str, Any] = {}
    inputs, wide = rows(4), rows(6, 512)

    def wide_layers() -> nn.Module:
        return layers(512)

    def around(state: Any) -> Callable[[DistributedDataParallel], Any]:
        def register(replica: DistributedDataParallel) -> Any:
            hook = default_hooks.fp16_compress_wrapper(mlt.torch.bounded_loss_hook)
            replica.register_comm_hook(state, hook)
            return state

        return register

    def of_torch(hook: Any, state: Any) -> Callable[[DistributedDataParallel], Any]:
        return lambda replica: replica.register_comm_hook(state, hook)

    def power_sgd(group: Any) -> Callable[[DistributedDataParallel], Any]:
        state = PowerSGDState(group, matrix_approximation_rank=8, start_powerSGD_iter=2)
        return of_torch(power_sgd_in_turn, state)

    expected, _ = train(layers, inputs, of_torch(default_hooks.fp16_compress_hook, gloo), gloo)
    averaged, state = train(layers, inputs, around(mlt.torch.BoundedLossState(loss_bound=0.0)))
    told["fp16 around"] = {"difference": difference(averaged, expected), "digest": digest(averaged)}
    told["fp16 around"]["steps"] = figures(state)
    lossy, state = train(wide_layers, wide, around(mlt.torch.BoundedLossState(loss_bound=0.2)))
    told["fp16 around, lossy"] = {
        "digest": digest(lossy),
        "missing": sum(one.missing_bytes for one in state.steps),
        "largest": max(one.loss_fraction for one in state.steps),
    }

    options = mlt.torch.Options(loss_bound=0.1)
    group = dist.new_group(pg_options=options)
    expected, _ = train(wide_layers, wide, of_torch(default_hooks.fp16_compress_hook, gloo), gloo)
    averaged, _ = train(wide_layers, wide, of_torch(default_hooks.fp16_compress_hook, group))
    told["fp16, group"] = {
        "difference": difference(averaged, expected),
        "digest": digest(averaged),
        "missing": options.losses.missing_bytes,
    }

    expected, _ = train(wide_layers, wide, of_torch(default_hooks.fp16_compress_hook, gloo), gloo)
    with mlt.torch.lossy(0.1):
        averaged, _ = train(wide_layers, wide, of_torch(default_hooks.fp16_compress_hook, None))
    told["fp16, lossy"] = {"difference": difference(averaged, expected), "digest": digest(averaged)}

    expected, _ = train(layers, inputs, of_torch(bf16_by_hand, gloo), gloo)
    averaged, _ = train(layers, inputs, of_torch(bf16_by_hand, None))
    told["bf16 by hand"] = {"difference": difference(averaged, expected), "digest": digest(averaged)}

    expected, _ = train(wide_layers, wide, power_sgd(gloo), gloo)
    averaged, _ = train(wide_layers, wide, power_sgd(None))
    told["PowerSGD"] = {"difference": difference(averaged, expected), "digest": digest(averaged)}
    options = mlt.torch.Options(loss_bound=0.1)
    group = dist.new_group(pg_options=options)
    averaged, _ = train(wide_layers, wide, power_sgd(group))
    told["PowerSGD, group"] = {
        "difference": difference(averaged, expected),
        "digest": digest(averaged),
        "missing": options.losses.missing_bytes,
    }
    return told


def main() -> None:
    program, options = sys.argv[1], json.loads(sys.argv[2])
    torch.set_num_threads(1)
    drop = options.get("drop", 0.0)
    # There are as many packets as on an Ethernet.
    faults = mlt.Faults(drop=drop, seed=3 + RANK)
    with mlt.Context(RANK, SIZE, 0, faults=faults, segment_bytes=1_432 if drop else None) as context:
        mlt.torch.use_context(context)
        dist.init_process_group("mlt")
        answer = globals()[program](dist.new_group(backend="gloo"))
        dist.barrier()
        print(json.dumps(answer), flush=True)
    os._exit(0)  # gloo's threads sometimes abort a process that ends in the ordinary way


if __name__ == "__main__":
    main()
