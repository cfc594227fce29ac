"""Calls that fail with a flight recorder: the programs of ``test_recorder.py``."""

from __future__ import annotations

import json
import os
import signal
import sys
from contextlib import suppress
from typing import Any

import mlt.torch
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def differ() -> Any:
    """The last rank makes another third call than the others."""
    x = torch.ones(1000)
    dist.all_reduce(x)
    dist.broadcast(x, 0)
    try:
        if RANK == SIZE - 1:
            dist.barrier()
        else:
            dist.all_reduce(x)
    except RuntimeError as failure:
        return str(failure)
    return ""


def differ_in_size() -> Any:
    """The ranks' second calls differ in the type, and so in the number of elements of as many bytes."""
    dist.all_reduce(torch.ones(3))
    try:
        dist.all_reduce(torch.ones(1000) if RANK == 0 else torch.ones(500, dtype=torch.float64))
    except RuntimeError as failure:
        return str(failure)
    return ""


def killed() -> Any:
    """The last rank dies before its third step; its gradients are averaged by the hook."""
    torch.manual_seed(1)
    network = nn.Linear(64, 64)
    replica = DistributedDataParallel(network)
    state = mlt.torch.BoundedLossState(named_parameters=network.named_parameters())
    replica.register_comm_hook(state, mlt.torch.bounded_loss_hook)
    for step in range(3):  # after the first, DDP forms its buckets anew, by a broadcast
        if step == 2 and RANK == SIZE - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            replica(torch.ones(4, 64)).square().mean().backward()
        except RuntimeError as failure:
            return str(failure)
    return ""


def main() -> None:
    program, options = sys.argv[1], json.loads(sys.argv[2])
    torch.set_num_threads(1)
    dist.init_process_group("mlt")
    answer = globals()[program](**options)
    with suppress(RuntimeError):
        dist.destroy_process_group()
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
