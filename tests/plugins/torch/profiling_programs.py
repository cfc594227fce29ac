"""Process groups under torch's own tools: the programs of ``test_profiling.py``."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import mlt.torch
import torch
import torch.distributed as dist
from job_program import run_in_group
from mlt.torch.process_group import MltProcessGroup
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, tensorboard_trace_handler

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def ddp_steps(count: int) -> Any:
    torch.manual_seed(1)
    replica = DistributedDataParallel(nn.Linear(8, 8))
    for _ in range(count):
        replica(torch.full((4, 8), float(RANK + 1))).square().mean().backward()
    return replica


def traced(folder: str, late_seconds: float) -> Any:
    """Names and durations of what the profiler recorded of each verb, of a step of DDP, and of a late rank's call."""
    replica = ddp_steps(2)  # the first regroups its buckets
    x, parts = torch.ones(1000), [torch.ones(10) for _ in range(SIZE)]
    handler = tensorboard_trace_handler(folder, worker_name=f"rank{RANK}")
    with profile(activities=[ProfilerActivity.CPU], on_trace_ready=handler):
        dist.all_reduce(x)
        dist.all_reduce(x, op=dist.ReduceOp.MAX)
        dist.broadcast(x, 0)
        dist.reduce(x, 0)
        dist.all_gather([torch.zeros(10) for _ in range(SIZE)], parts[0])
        dist.reduce_scatter(torch.zeros(10), parts)
        dist.all_to_all([torch.zeros(10) for _ in range(SIZE)], parts)
        dist.all_to_all_single(torch.zeros(SIZE), torch.ones(SIZE))
        dist.gather(parts[0], [torch.zeros(10) for _ in range(SIZE)] if RANK == 0 else None, 0)
        dist.scatter(torch.zeros(10), parts if RANK == 0 else None, 0)
        if RANK == 0:
            dist.send(x, 1)
        elif RANK == 1:
            dist.recv(x, 0)
        replica(torch.ones(4, 8)).square().mean().backward()
        if RANK == SIZE - 1:
            time.sleep(late_seconds)
        dist.barrier()
    dist.all_reduce(x)  # none of it is recorded
    (trace,) = Path(folder).glob(f"rank{RANK}.*.json")
    events = [event for event in json.loads(trace.read_text())["traceEvents"] if event.get("ph") == "X"]
    return [(event["name"], event["dur"] / 1e6) for event in events if event["name"].startswith("mlt:")]


def hooked() -> Any:
    """Names of what the profiler recorded of two steps with the hook."""
    network = nn.Linear(8, 8)
    replica = DistributedDataParallel(network)
    replica.register_comm_hook(mlt.torch.BoundedLossState(loss_bound=0.0), mlt.torch.bounded_loss_hook)
    replica(torch.ones(4, 8)).sum().backward()
    with profile(activities=[ProfilerActivity.CPU]) as found:
        for _ in range(2):
            replica(torch.ones(4, 8)).sum().backward()
    return [event.name for event in found.events() if "hook" in event.name]


def debugged() -> Any:
    """TORCH_DISTRIBUTED_DEBUG=DETAIL and the flight recorder: collectives, DDP, and calls that differ."""
    from torch._C._distributed_c10d import _dump_fr_trace_json

    assert dist.get_debug_level() == dist.DebugLevel.DETAIL
    is_wrapped = not isinstance(dist.group.WORLD, MltProcessGroup)
    dist.all_reduce(x := torch.tensor([float(RANK)]))
    logged = ddp_steps(3)._get_ddp_logging_data()
    recorded = json.loads(_dump_fr_trace_json()).get("entries", [])
    error = ""
    try:
        dist.all_reduce(torch.ones(3 + RANK))
    except RuntimeError as failure:
        error = str(failure)
    return {
        "is_wrapped": is_wrapped,
        "sum": x.item(),
        "backend": logged["backend_name"],
        "recorded": len(recorded),
        "error": error,
    }


if __name__ == "__main__":
    dist.set_debug_level_from_env()  # again: torch was imported before this process was forked
    run_in_group(globals())
