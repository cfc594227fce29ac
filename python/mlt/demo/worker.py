"""A training process of a run: ``python -m mlt.demo.worker JOB``, with the rendezvous in the environment.

An ordinary DDP program: the backend "mlt" carries the exact collectives, the bounded-loss hook the gradients. Over gloo
the same program has neither.
"""

from __future__ import annotations

import hashlib
import os
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import mlt
import mlt.torch
from mlt.demo import data, training
from mlt.demo.child import Reporter, start
from mlt.demo.events import Finished, Ready
from mlt.demo.model import SmallResNet
from mlt.demo.settings import ETHERNET_SEGMENT_BYTES, ProcessJob
from mlt.demo.timed_hook import TimedState, timed_hook

# Megabytes per gradient bucket: small enough to send the front layers' gradients apart from the back layers'.
BUCKET_MEGABYTES = 0.25


def digest(module: torch.nn.Module) -> str:
    """SHA-256 of all parameters' bytes, in order: equal on two ranks only if every bit is equal."""
    sha = hashlib.sha256()
    for parameter in module.parameters():
        sha.update(parameter.detach().contiguous().numpy().tobytes())
    return sha.hexdigest()


def train(job: ProcessJob, reporter: Reporter, context: mlt.Context | None) -> None:
    """Train this rank's replica for ``job.steps`` steps and report every one of them. ``context``: None over gloo."""
    images = data.load(job.data)
    torch.manual_seed(job.seed)
    network = SmallResNet(classes=data.CLASSES)
    replica = DistributedDataParallel(network, bucket_cap_mb=BUCKET_MEGABYTES)
    state: mlt.torch.BoundedLossState | TimedState
    if context is None:
        state = TimedState()
        replica.register_comm_hook(state, timed_hook)
    else:
        state = mlt.torch.BoundedLossState(context, loss_bound=job.bound)
        replica.register_comm_hook(state, mlt.torch.bounded_loss_hook)
    reporter.report(Ready(rank=job.rank, parameters=sum(parameter.numel() for parameter in network.parameters())))
    accuracy = training.run(
        replica,
        images,
        state,
        steps=job.steps,
        batch=job.batch,
        seed=job.seed,
        evaluations=job.evaluations,
        report=reporter.report,
    )
    # Counted before any rank leaves, so that the counters cover the training only.
    dist.barrier()
    reporter.report(
        Finished(
            rank=job.rank,
            counters={} if context is None else context.counters(),
            parameters_sha256=digest(network),
            test_accuracy=accuracy,
        )
    )


def main(argument: str) -> None:
    job, reporter = start(argument)
    torch.set_num_threads(1)
    if job.backend == "gloo":
        dist.init_process_group("gloo")
        train(job, reporter, None)
        os._exit(0)  # gloo's threads sometimes abort a process that ends in the ordinary way
    options: dict[str, Any] = {}
    if job.network == "loopback":
        # All runs use the same network: with shared memory, the run without faults would not. Its packets are as long
        # as those of an Ethernet, so that a lost one takes no more of a gradient than there.
        faults = mlt.Faults(drop=job.drop, seed=job.fault_seed)
        options = {"faults": faults, "datapath": "udp", "segment_bytes": ETHERNET_SEGMENT_BYTES}
    with mlt.Context(job.rank, job.workers, job.services, **options) as context:
        mlt.torch.use_context(context)
        dist.init_process_group("mlt")
        train(job, reporter, context)
        dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
