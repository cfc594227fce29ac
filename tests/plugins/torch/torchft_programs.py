"""Replicas of torchft, each a process of its own; test_torchft.py starts them with a program's name and its options."""

from __future__ import annotations

import time
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from job_program import run_program
from mlt.torch.torchft import ProcessGroupMlt
from torchft.ddp import DistributedDataParallel
from torchft.local_sgd import DiLoCo
from torchft.manager import Manager
from torchft.optim import OptimizerWrapper

LIMIT = timedelta(seconds=60)
REPLICAS, STEPS = 3, 5
KILLED, KILLED_IN_STEP = 2, 2  # the steps before count from 0
INNER_STEPS = 4  # of DiLoCo, in each of its steps


def linear() -> tuple[torch.nn.Linear, torch.optim.Optimizer]:
    model = torch.nn.Linear(3, 2)
    with torch.no_grad():
        model.weight.fill_(0.5)
        model.bias.fill_(1.0)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def loss_of(model: torch.nn.Module, step: int, replica: int) -> torch.Tensor:
    """The loss of a batch that depends on step and replica: a discarded step is repeated."""
    x = torch.randn(8, 3, generator=torch.Generator().manual_seed(100 * step + replica))
    return model(x).square().mean()


def local_steps(model: torch.nn.Module, optimizer: torch.optim.Optimizer, replica: int, steps: Iterable[int]) -> None:
    for step in steps:
        optimizer.zero_grad()
        loss_of(model, step, replica).backward()
        optimizer.step()


class Stopping(ProcessGroupMlt):
    """The group of the replica that the test kills: stops in the middle of a step, when the others are in an
    all-reduce."""

    manager: Any = None
    calls_left = 0

    def allreduce(self, tensors: Any, opts: Any) -> Any:
        if self.manager is not None and self.manager.current_step() == KILLED_IN_STEP:
            if self.calls_left == 0:
                print("kill me", flush=True)
                time.sleep(60)
            self.calls_left -= 1
        return super().allreduce(tensors, opts)


def manager_of(
    group: ProcessGroupMlt, replica: int, lighthouse: str, model: torch.nn.Module, replicas: int = REPLICAS
) -> Any:
    """A manager that has met so many replicas."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    manager = Manager(
        pg=group,
        load_state_dict=model.load_state_dict,
        state_dict=model.state_dict,
        min_replica_size=1,
        use_async_quorum=False,
        init_sync=False,  # all start with the same parameters
        replica_id=f"replica-{replica}",
        hostname="localhost",
        lighthouse_addr=lighthouse,
        store_addr="127.0.0.1",
        store_port=store.port,
        rank=0,
        world_size=1,
    )
    while manager.num_participants() < replicas:
        time.sleep(0.02)
        manager.start_quorum()
    manager.own_store = store  # which it needs as long as it lives
    return manager


def ended(manager: Any, group: ProcessGroupMlt, model: torch.nn.Module, made: list[list[int]]) -> dict[str, Any]:
    manager.shutdown(wait=False)
    group.shutdown()
    return {"steps": made, "weight": model.weight.tolist(), "bias": model.bias.tolist()}


def ddp(replica: int, lighthouse: str) -> dict[str, Any]:
    """Steps of DistributedDataParallel: the number of each, of its replicas, and whether it counts."""
    group = Stopping(timeout=LIMIT)
    module, inner = linear()
    manager = manager_of(group, replica, lighthouse, module)
    model, optimizer = DistributedDataParallel(manager, module), OptimizerWrapper(manager, inner)
    group.manager = manager if replica == KILLED else None
    made = []
    while manager.current_step() < STEPS:
        step = manager.current_step()
        optimizer.zero_grad()
        loss_of(model, step, replica).backward()
        optimizer.step()
        made.append([step, manager.num_participants(), int(manager.current_step() > step)])
    return ended(manager, group, module, made)


def diloco(replica: int, lighthouse: str) -> dict[str, Any]:
    """The same for steps of DiLoCo, of several inner steps each."""
    group = Stopping(timeout=LIMIT)
    group.calls_left = 1  # of two all-reduces of a step: the second does not come
    model, inner = linear()
    manager = manager_of(group, replica, lighthouse, model)
    group.manager = manager if replica == KILLED else None
    outer = torch.optim.SGD(model.parameters(), lr=1.0)  # the mean of the replicas' parameters
    made = []
    with DiLoCo(manager, [model], inner, outer, sync_every=INNER_STEPS):
        while manager.current_step() < STEPS:
            step = manager.current_step()
            local_steps(model, inner, replica, range(step * INNER_STEPS, (step + 1) * INNER_STEPS))
            made.append([step, manager.num_participants(), int(manager.current_step() > step)])
    return ended(manager, group, model, made)


if __name__ == "__main__":
    run_program(globals())
