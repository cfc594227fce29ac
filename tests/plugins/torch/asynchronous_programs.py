"""Programs of one rank, for the tests of asynchronous training; started by job.py with its name and options."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

os.environ["BYTEPS_ENABLE_ASYNC"] = "1"

import mlt.torch.byteps as bps
import mlt.torch.horovod as hvd
from mlt.torch.byteps.cross_barrier import CrossBarrier

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python"))
import torch
from job_program import run_program
from semantics import Checks, fails, step_until_rank_1_fails
from torch import nn

from mlt.errors import ConfigError

CHECKS = Checks()
check = CHECKS.add


def model_of(seed: int = 1) -> nn.Module:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
    model[2].double()
    return model


def optimizer_of(model: nn.Module, **options: Any) -> Any:
    return bps.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=1.0, **options), named_parameters=model.named_parameters()
    )


def step_by(optimizer: Any, model: nn.Module, gradient: float) -> None:
    for one in model.parameters():
        one.grad = torch.full_like(one, gradient)
    optimizer.step()


def whole(model: nn.Module) -> nn.Module:
    """Makes the parameters of ``model`` multiples of 1/8, whose sums are exact."""
    with torch.no_grad():
        for one in model.parameters():
            one.copy_((one * 8).round() / 8)
    return model


@check
def parameters_have_the_steps_of_all_workers() -> None:
    model = whole(model_of(hvd.rank()))
    optimizer = optimizer_of(model)
    bps.broadcast_parameters(model.state_dict(), root_rank=0)
    bps.broadcast_optimizer_state(optimizer, root_rank=0)
    before = [one.detach().clone() for one in model.parameters()]
    for _ in range(3 + 2 * hvd.rank()):  # each worker at its own pace
        step_by(optimizer, model, 0.25 * (hvd.rank() + 1))
    hvd.barrier()
    step_by(optimizer, model, 0.0)  # takes what the others added last
    for one, start in zip(model.parameters(), before, strict=True):
        assert torch.equal(one, start - (3 * 0.25 + 5 * 0.5))
    hvd.barrier()


@check
def no_worker_waits_for_the_step_of_another() -> None:
    model = whole(model_of())
    start = model[0].bias.detach().clone()
    optimizer = optimizer_of(model)
    step_by(optimizer, model, 0.0)
    if hvd.rank() == 0:
        for _ in range(5):
            step_by(optimizer, model, 0.5)
    # Rank 1 begins its next step only after this.
    assert hvd.broadcast_object("five steps", root_rank=0) == "five steps"
    if hvd.rank() == 1:
        step_by(optimizer, model, 0.5)
        assert torch.equal(model[0].bias, start - 3.0)
    hvd.barrier()


@check
def the_optimizers_state_is_each_workers_own() -> None:
    model = whole(model_of())
    start = model[0].bias.detach().clone()
    optimizer = optimizer_of(model, momentum=0.5)
    for _ in range(2):
        step_by(optimizer, model, 1.0 if hvd.rank() == 0 else 0.0)
    hvd.barrier()
    step_by(optimizer, model, 0.0)
    # Rank 0 went by 1, 1.5, and 0.75, whose last change may be in rank 1's parameters or not.
    assert torch.equal(model[0].bias, start - 3.25) or (hvd.rank() == 1 and torch.equal(model[0].bias, start - 2.5))
    hvd.barrier()


@check
def a_model_learns() -> None:
    model = model_of()
    generator = torch.Generator().manual_seed(hvd.rank())
    optimizer: Any = bps.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.05), named_parameters=model.named_parameters()
    )
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
    inputs = torch.randn(16, 4, generator=generator)

    def loss() -> torch.Tensor:
        hidden = model[1](model[0](inputs)).double()
        return (model[2](hidden) - inputs[:, :2]).square().mean()

    first = loss().item()
    for _ in range(40):
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()
        scheduler.step()
    assert loss().item() < first / 2
    hvd.barrier()


@check
def different_parameters_are_rejected_on_all_workers() -> None:
    model = model_of(hvd.rank())
    optimizer = optimizer_of(model)
    with fails(hvd.HorovodInternalError, "values", "rank(s) 1", "broadcast_parameters"):
        step_by(optimizer, model, 1.0)
    bps.broadcast_parameters(model.state_dict(), root_rank=0)
    step_by(optimizer, model, 1.0)
    with fails(RuntimeError, "add_param_group"):
        optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))]})
    hvd.barrier()


@check
def what_it_cannot_do_is_rejected() -> None:
    model = model_of()
    sgd = torch.optim.SGD(model.parameters(), lr=1.0)
    with fails(ValueError, "no compression"):
        bps.DistributedOptimizer(sgd, compression=bps.Compression.fp16)
    with fails(ValueError, "backward_passes_per_step"):
        bps.DistributedOptimizer(sgd, backward_passes_per_step=0)
    with fails(ValueError, "floating point", "'odd'"):
        odd = nn.Parameter(torch.ones(1, dtype=torch.complex64))
        bps.DistributedOptimizer(torch.optim.SGD([odd], lr=1.0), [("odd", odd)])
    with fails(ConfigError, "CrossBarrier", "BYTEPS_ENABLE_ASYNC"):
        CrossBarrier(model, sgd)
    with fails(ConfigError, "DistributedOptimizer", "BYTEPS_ENABLE_ASYNC"):
        bps.parallel.DistributedDataParallel(model)
    with fails(AssertionError, "skip_synchronize"), bps.DistributedOptimizer(sgd).skip_synchronize():
        pass


@check
def a_resumed_job_begins_again() -> None:
    model = whole(model_of())
    optimizer = optimizer_of(model)
    rank, size = bps.rank(), bps.size()
    step_by(optimizer, model, 0.5)
    bps.suspend()  # waits for the other's last step
    bps.resume(num_workers=size, num_servers=0, global_rank=rank)
    bps.broadcast_parameters(model.state_dict(), root_rank=0)
    start = model[0].bias.detach().clone()
    step_by(optimizer, model, 0.5)
    hvd.barrier()
    step_by(optimizer, model, 0.0)
    assert torch.equal(model[0].bias, start - 0.5 * size)
    hvd.barrier()


def semantics(checks: list[str]) -> dict[str, str]:
    """The failures of these checks, by name; empty: none."""
    bps.init()
    found = CHECKS.failures(checks)
    bps.shutdown()
    return found


def ended_early(steps: int) -> float:
    """Rank 0 ends after its first step, without a call of shutdown; rank 1 makes this many."""
    bps.init()
    model = whole(model_of())
    start = model[0].bias.detach().clone()
    optimizer = optimizer_of(model)
    for _ in range(steps if bps.rank() == 1 else 1):
        step_by(optimizer, model, 0.5)
    return float((start - model[0].bias).max())


def failing(how: str) -> str:
    """Rank 1 fails after two steps; the error of the others."""
    bps.init()
    model = model_of()
    optimizer = optimizer_of(model)
    try:
        step_until_rank_1_fails(lambda: step_by(optimizer, model, 0.5), rank=bps.rank(), how=how)
    except hvd.HorovodInternalError as error:
        return str(error)


if __name__ == "__main__":
    run_program(globals())
