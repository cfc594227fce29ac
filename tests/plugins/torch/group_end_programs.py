"""Groups that end with calls in progress: the programs of ``test_group_end.py``."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from typing import Any

import mlt.torch
import torch
import torch.distributed as dist
from job_program import run_program, runtime_error_of
from mlt.torch import staging
from stand_in import StandIn
from stopping import pid_of, stop, wait_until_stopped
from torch import nn
from torch.distributed.distributed_c10d import _abort_process_group
from torch.nn.parallel import DistributedDataParallel

RANK = int(os.environ["RANK"])


def summed(group: Any = None) -> float:
    dist.all_reduce(x := torch.ones(1), group=group)
    return x.item()


def fail(_: Any) -> None:
    raise ValueError("of the program")


def thrown(hook: bool, late: bool) -> Any:
    """Rank 1's backward pass raises, with ``late`` after a bucket was started that the others never start, because
    theirs wait for rank 2, which sleeps; each rank destroys its group in ``finally``."""
    dist.init_process_group("mlt")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
    replica = DistributedDataParallel(model, bucket_cap_mb=0.1)
    if hook:
        replica.register_comm_hook(mlt.torch.BoundedLossState(loss_bound=0.0), mlt.torch.bounded_loss_hook)
    for _ in range(2):  # the second rebuilds the buckets, for which ranks wait in the forward pass
        replica(torch.randn(8, 64)).square().mean().backward()
    if RANK == 1:
        model[0 if late else 3].register_forward_hook(lambda _, __, output: output.register_hook(fail) and None)
    dist.barrier()
    if late and RANK == 2:
        time.sleep(4.5)
    told: dict[str, Any] = {"error": ""}
    try:
        try:
            replica(torch.randn(8, 64)).square().mean().backward()
        finally:
            begun = time.monotonic()
            dist.destroy_process_group()
            told["seconds"] = time.monotonic() - begun
    except (RuntimeError, ValueError) as error:
        told["error"] = str(error)
    return told


def unanswered() -> Any:
    """Rank 1 destroys its groups with an all-reduce in progress that rank 0 waits for too, and rank 2 never calls."""
    dist.init_process_group("mlt")
    others = [dist.new_group() for _ in range(2)]
    summed()
    work = None
    if RANK != 2:
        work = dist.all_reduce(torch.ones(3), async_op=True)
        later = [dist.all_reduce(torch.ones(2), group=group, async_op=True) for group in others]
    begun = time.monotonic()
    if RANK == 1:
        dist.destroy_process_group()
        return {"seconds": time.monotonic() - begun, "errors": [runtime_error_of(one.wait) for one in (work, *later)]}
    error = runtime_error_of(work.wait if work is not None else lambda: dist.recv(torch.zeros(1), 1))
    return {"seconds": time.monotonic() - begun, "errors": [error]}


def in_a_subgroup(end: str) -> Any:
    """Rank 1 destroys ("destroy") or aborts ("abort") a group; the others' calls in it, then those of other groups.

    What is destroyed has a call in progress that rank 0 has made too, and rank 2 makes later.
    """
    dist.init_process_group("mlt")
    group, other = dist.new_group(), dist.new_group()
    state = mlt.torch.BoundedLossState(group, loss_bound=0.0)
    replica = DistributedDataParallel(nn.Linear(8, 8), process_group=group)
    replica.register_comm_hook(state, mlt.torch.bounded_loss_hook)
    replica(torch.ones(2, 8)).sum().backward()
    dist.barrier()
    begun, errors = time.monotonic(), []
    if RANK == 1:
        if end == "destroy":
            work = dist.all_reduce(torch.ones(3), group=group, async_op=True)
            dist.destroy_process_group(group)
            dist.barrier(other)
        else:
            receive = dist.irecv(torch.zeros(3), 0, group=group)
            _abort_process_group(group)
            work = receive
        seconds = time.monotonic() - begun
        errors = [runtime_error_of(work.wait), runtime_error_of(lambda: group.allreduce([torch.ones(1)]))]
    else:
        if end == "destroy" and RANK == 2:
            dist.barrier(other)
        # A collective, a sparse sum, and a bucket of the hook; what is aborted, rank 1 has not called.
        pending = [dist.all_reduce(torch.ones(3), group=group, async_op=True)]
        if end == "abort":
            sparse = torch.sparse_coo_tensor([[0]], [1.0], (4,))
            pending.append(dist.all_reduce(sparse, group=group, async_op=True))
            errors.append(runtime_error_of(lambda: replica(torch.ones(2, 8)).sum().backward()))
        errors += [runtime_error_of(work.wait) for work in pending]
        if end == "destroy" and RANK == 0:
            dist.barrier(other)
        seconds = time.monotonic() - begun
        errors.append(runtime_error_of(lambda: summed(group)))
    sums = [summed(), summed(other)]
    dist.barrier()
    if RANK != 1:
        dist.destroy_process_group(group)
    dist.destroy_process_group()
    return {"errors": errors, "sums": sums, "seconds": seconds}


def aborted_default() -> Any:
    dist.init_process_group("mlt")
    group = dist.new_group()
    summed()
    if RANK == 1:
        _abort_process_group()
        return {"errors": []}
    return {"errors": [runtime_error_of(summed), runtime_error_of(lambda: summed(group))]}


def stopped_peer() -> Any:
    """Rank 1 is stopped for good; rank 0 destroys a group and then all, with calls in progress in each."""
    dist.init_process_group("mlt")
    group = dist.new_group()
    summed(group)
    pid = pid_of(1)
    if RANK == 1:
        stop()
    wait_until_stopped(pid)
    for one in (group, None):
        dist.all_reduce(torch.ones(1 << 20), group=one, async_op=True)
    begun = time.monotonic()
    dist.destroy_process_group(group)
    between = time.monotonic()
    dist.destroy_process_group()
    return {"group": between - begun, "all": time.monotonic() - between}


def large(megabytes: int) -> Any:
    """A send in progress at the end of its group, whose data arrives: it completes, however long it takes."""
    dist.init_process_group("mlt", timeout=timedelta(seconds=60))
    dist.barrier()
    tensor = torch.ones(megabytes << 18)
    if RANK == 0:
        dist.isend(tensor, 1)
        dist.destroy_process_group()
        return {}
    time.sleep(1.0)  # the group of rank 0 ends meanwhile
    dist.recv(tensor.zero_(), 0)
    return {"minimum": tensor.min().item()}


def staged() -> Any:
    """Sums of tensors on the stand-in accelerator, most of which wait for their turn when the group is destroyed."""
    device = StandIn()
    staging.add_device(device)
    dist.init_process_group("mlt")
    tensors = [device.tensor(torch.ones(1000)) for _ in range(8)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    dist.destroy_process_group()
    return {
        "errors": [runtime_error_of(work.wait) for work in works],
        "sums": [float(device.host(one)[9]) for one in tensors],
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    run_program(globals())
