"""Process groups in code that ``torch.compile`` compiles: the programs of ``test_compilation.py``."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from typing import Any

import mlt.torch
import torch
import torch._dynamo
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from job_program import run_in_group
from torch import nn
from torch.nn.parallel import DistributedDataParallel

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
STEPS = 4


def trained(optimize_ddp: bool | str | None, hook: bool, backend: str = "eager") -> str:
    """The hash of the parameters after some steps of DDP with several buckets; None: not compiled."""
    torch._dynamo.reset()
    torch._dynamo.config.optimize_ddp = True if optimize_ddp is None else optimize_ddp
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(16, 20_000), nn.BatchNorm1d(20_000), nn.ReLU(), nn.Linear(20_000, 16))
    replica: Any = DistributedDataParallel(model, bucket_cap_mb=1)
    if hook:
        state = mlt.torch.BoundedLossState(loss_bound=0.0)
        replica.register_comm_hook(state, mlt.torch.bounded_loss_hook)
        if optimize_ddp is None or optimize_ddp is False:
            state.resynchronise_every(2, replica)  # a forward hook of the module
    if optimize_ddp is not None:
        replica = torch.compile(replica, backend=backend)
    optimizer = torch.optim.SGD(replica.parameters(), lr=0.1)
    for step in range(STEPS):
        torch.manual_seed(SIZE * step + RANK)
        optimizer.zero_grad()
        replica(torch.randn(4, 16)).square().mean().backward()
        optimizer.step()
    if hook:
        assert len(state.steps) == STEPS
    return hashlib.sha256(b"".join(one.detach().numpy().tobytes() for one in model.parameters())).hexdigest()


def ddp(**cases: list[Any]) -> Any:
    return {name: trained(*case) for name, case in cases.items()}


def ddp_without_buckets() -> Any:
    try:
        return trained("python_reducer", True)
    except Exception as error:
        return str(error)


def functions() -> Any:
    """Whether each call is right in a compiled function; the calls of one function, its result and the expected one."""
    everyone = list(range(SIZE))
    total, own = float(sum(everyone)), float(RANK)

    def all_reduce(x: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(y := x + 1)
        return y * 2

    def asynchronous(x: torch.Tensor) -> torch.Tensor:
        work = dist.all_reduce(y := x + 1, async_op=True)
        work.wait()
        return y * 2

    def functional_all_reduce(x: torch.Tensor) -> torch.Tensor:
        return functional.all_reduce(x + 1, "sum", everyone) * 2

    def functional_gather(x: torch.Tensor) -> torch.Tensor:
        return functional.all_gather_tensor(x + 1, 0, everyone).sum() * 2

    def functional_scatter(x: torch.Tensor) -> torch.Tensor:
        return functional.reduce_scatter_tensor(x.repeat(SIZE) + 1, "sum", 0, everyone) * 2

    def broadcast(x: torch.Tensor) -> torch.Tensor:
        dist.broadcast(y := x + 1, 1)
        return y * 2

    def gathered(x: torch.Tensor) -> torch.Tensor:
        outputs = [torch.empty_like(x) for _ in everyone]
        dist.all_gather(outputs, x + 1)
        return sum(outputs) * 2  # type: ignore[return-value]

    def exchanged(x: torch.Tensor) -> torch.Tensor:
        y = torch.empty_like(x)
        if RANK == 0:
            dist.send(x + 1, 1)
            dist.recv(y, 1)
        else:
            dist.recv(y, 0)
            dist.send(x + 1, 0)
        return y * 2

    def within_a_bound(x: torch.Tensor) -> torch.Tensor:
        with mlt.torch.lossy(0.0):
            dist.all_reduce(y := x + 1)
        return y * 2

    summed = 2 * (total + SIZE)
    expected: dict[Callable[[torch.Tensor], torch.Tensor], float] = {
        all_reduce: summed,
        asynchronous: summed,
        functional_all_reduce: summed,
        functional_gather: 3 * summed,
        functional_scatter: summed,
        broadcast: 4.0,
        gathered: summed,
        exchanged: 2 * (1.0 - own + 1),
        within_a_bound: summed,
    }
    wrong = {}
    for function, value in expected.items():
        torch._dynamo.reset()
        compiled = torch.compile(function, backend="aot_eager")
        for _ in range(2):
            result = compiled(torch.full((3,), own))
            if not torch.equal(result, torch.full_like(result, value)):
                wrong[function.__name__] = f"{result.tolist()}, not {value}"
    return wrong


def allowed() -> Any:
    """The bound that each collective of compiled code has."""
    bounds = []
    context = mlt.torch.current_context()
    post = context.post_all_reduce

    def posted(*arguments: Any, **options: Any) -> Any:
        bounds.append(options["loss_bound"])
        return post(*arguments, **options)

    context.post_all_reduce = posted  # type: ignore[method-assign]

    def within(x: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(y := x + 1)
        with mlt.torch.lossy(0.25):
            dist.all_reduce(y)
        z = functional.all_reduce(y, "sum", list(range(SIZE)))
        with mlt.torch.lossy(0.5):
            return functional.all_reduce(z * 2, "sum", list(range(SIZE))) + 1

    compiled = torch.compile(within, backend="aot_eager")
    for _ in range(2):
        compiled(torch.ones(4))
    with mlt.torch.lossy(0.125):  # around all of it
        torch.compile(lambda x: functional.all_reduce(x + 1, "sum", list(range(SIZE))) + 1, backend="aot_eager")(
            torch.ones(4)
        )
    return bounds


if __name__ == "__main__":
    run_in_group(globals())
