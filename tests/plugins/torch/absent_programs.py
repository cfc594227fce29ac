"""Ranks that are stopped for good, that never come, and services that were not started: the programs of
``test_absent.py``."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from typing import Any

import mlt.torch
import torch
import torch.distributed as dist
from job_program import error_of, run_program
from stopping import pid_of, stop, wait_until_stopped
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from mlt.job import rendezvous

RANK = int(os.environ["RANK"])


def init(seconds: float, place: str = "") -> None:
    if place:
        where: dict[str, Any] = {
            "init_method": f"file://{place}",
            "rank": RANK,
            "world_size": int(os.environ["WORLD_SIZE"]),
        }
    else:
        where = {}
    dist.init_process_group("mlt", timeout=timedelta(seconds=seconds), **where)


def stopped(at: str, timeout: float, place: str = "", environment: dict[str, str] | None = None) -> Any:
    """Rank 1 is stopped before the start ("init"), between meeting and connecting ("connect"), before a sum ("call"),
    and before a backward pass of DDP ("ddp"); the others' error and its time."""
    os.environ.update(environment or {})
    if at == "init" and RANK == 1:
        stop()
    if at == "connect" and RANK == 1:
        meet = rendezvous.meet

        def met(*arguments: Any, **named: Any) -> Any:
            table = meet(*arguments, **named)
            stop()
            return table

        rendezvous.meet = met
    begun = time.monotonic()
    if at in ("init", "connect"):
        error = error_of(lambda: init(timeout, place))
        return {"error": error, "seconds": time.monotonic() - begun}
    init(timeout, place)
    if at == "ddp":
        replica = DistributedDataParallel(nn.Linear(8, 8))
        loss = replica(torch.ones(2, 8)).sum()
    dist.barrier()
    pid = pid_of(1)
    if RANK == 1:
        stop()
    wait_until_stopped(pid)
    begun = time.monotonic()
    error = error_of(loss.backward if at == "ddp" else lambda: dist.all_reduce(torch.ones(3)))
    told = {"error": error, "seconds": time.monotonic() - begun}
    begun = time.monotonic()
    dist.destroy_process_group()
    return {**told, "destroy": time.monotonic() - begun}


def forgotten_service(timeout: float) -> Any:
    os.environ["MLT_SERVICES"] = "1"
    begun = time.monotonic()

    def train() -> None:
        init(timeout)
        replica = DistributedDataParallel(nn.Linear(8, 8))
        replica.register_comm_hook(mlt.torch.BoundedLossState(), mlt.torch.bounded_loss_hook)

    return {"error": error_of(train), "seconds": time.monotonic() - begun}


def world_size(sizes: list[int], timeout: float, place: str) -> Any:
    """Each rank believes in a size of its own."""
    os.environ["WORLD_SIZE"] = str(sizes[RANK])
    begun = time.monotonic()

    def train() -> None:
        init(timeout, place)
        DistributedDataParallel(nn.Linear(8, 8))

    return {"error": error_of(train), "seconds": time.monotonic() - begun}


if __name__ == "__main__":
    torch.set_num_threads(1)
    run_program(globals())
