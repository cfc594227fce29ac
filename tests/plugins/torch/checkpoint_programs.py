"""Distributed checkpoints over a group "mlt" alone: the programs of ``test_process_group_base.py``."""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoints
from job_program import run_in_group
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    set_model_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def model_of(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    fully_shard(model, mesh=init_device_mesh("cpu", (SIZE,)))
    return model


def full(model: nn.Module) -> dict[str, Any]:
    return {name: tensor.full_tensor().tolist() for name, tensor in model.state_dict().items()}  # type: ignore[operator]


def saved(folder: str) -> Any:
    """Whether a checkpoint that is saved while the program trains has the state at the call, and can be loaded."""
    model = model_of(1)
    before = full(model)
    group = dist.new_group(backend="mlt")
    in_progress = checkpoints.async_save(get_model_state_dict(model), checkpoint_id=folder, process_group=group)
    for _ in range(20):
        model(torch.ones(4, 8)).sum().backward()
        torch.optim.SGD(model.parameters(), lr=0.1).step()
    in_progress.result()
    alone = checkpoints.async_save({"bias": torch.ones(3)}, checkpoint_id=f"{folder}/alone")  # the default group
    alone.result()
    other = model_of(2)
    state = get_model_state_dict(other)
    checkpoints.load(state, checkpoint_id=folder)
    set_model_state_dict(other, state)
    return {"loaded": full(other) == before, "trained": full(model) != before}


def from_rank_0() -> Any:
    """Whether a whole state of rank 0 becomes that of a sharded model."""
    torch.manual_seed(5)
    whole = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).state_dict()
    expected = {name: tensor.tolist() for name, tensor in whole.items()}
    model = model_of(2)
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_model_state_dict(model, whole if RANK == 0 else {}, options=options)
    return full(model) == expected


def devices() -> Any:
    group = dist.group.WORLD
    assert group is not None
    nothing_else = dist.new_group(backend="cpu:mlt")
    return [[str(one) for one in one._device_types] for one in (group, nothing_else)]


if __name__ == "__main__":
    run_in_group(globals())
