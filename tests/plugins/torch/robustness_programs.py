"""Events around a training loop: the programs of ``test_robustness.py``."""

from __future__ import annotations

import os
import subprocess
import time
from typing import Any

import torch
import torch.distributed as dist
from job_program import run_in_group
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

BATCHES = 6


class Squares(torch.utils.data.Dataset[torch.Tensor]):
    """Computed in the loader's processes, which are forked after the process group's threads have started."""

    def __len__(self) -> int:
        return 4 * BATCHES

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([float(index * index)])


def error_of(call: Any) -> str:
    try:
        call()
    except Exception as error:
        return str(error)
    return ""


def summed(value: float) -> float:
    dist.all_reduce(x := torch.tensor([value]))
    return x.item()


def suspended(seconds: float) -> dict[str, Any]:
    """Rank 1 is stopped for longer than a peer may be silent, and continues; every sum until then and after it."""
    rank, size = dist.get_rank(), dist.get_world_size()
    stopper = None
    if rank == 1:
        pid = os.getpid()
        script = f"sleep 0.2; kill -STOP {pid}; sleep {seconds}; kill -CONT {pid}"
        stopper = subprocess.Popen(["sh", "-c", script])
    wrong, longest = 0, 0.0
    while True:
        begun = time.monotonic()
        wrong += summed(float(rank)) != float(sum(range(size)))
        is_over = summed(float(stopper is not None and stopper.poll() is not None)) > 0
        longest = max(longest, time.monotonic() - begun)  # of both: rank 1 is stopped in either
        if is_over:
            return {"wrong": wrong, "longest": longest}
        time.sleep(0.01)


def data_loader() -> dict[str, Any]:
    """Two epochs whose batches come from forked processes."""
    rank, size = dist.get_rank(), dist.get_world_size()
    found = []
    for _ in range(2):
        loader = DataLoader(Squares(), batch_size=4, num_workers=2, multiprocessing_context="fork")
        found.append([summed(batch.sum().item() + rank) for batch in loader])
    batches = [sum(float(i * i) for i in range(4 * b, 4 * b + 4)) for b in range(BATCHES)]
    return {"right": found == [[size * batch + sum(range(size)) for batch in batches]] * 2}


def other_order() -> None:
    """Rank 1's model has its layers in another order, so that the shapes of its parameters differ."""
    layers = [nn.Linear(4, 8), nn.Linear(8, 4)]
    DistributedDataParallel(nn.Sequential(*(layers if dist.get_rank() == 0 else reversed(layers))))


def death() -> dict[str, Any]:
    """Rank 1 is killed; how long it takes rank 0 to end its process group after the error."""
    summed(1.0)
    if dist.get_rank() == 1:
        print("kill me", flush=True)
        time.sleep(60)  # killed before that
    error = error_of(lambda: summed(1.0))
    begun = time.monotonic()
    dist.destroy_process_group()
    return {"error": error, "seconds": time.monotonic() - begun}


if __name__ == "__main__":
    run_in_group(globals())
