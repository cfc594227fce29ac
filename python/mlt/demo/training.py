"""The training loop of the demo: plain data-parallel SGD, independent of the transport."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import BatchSampler, DataLoader, Dataset, DistributedSampler

from mlt.demo.data import Images
from mlt.demo.events import Evaluated, StepDone
from mlt.demo.problem import DemoError
from mlt.demo.timed_hook import TimedState
from mlt.torch import BoundedLossState

PEAK_LEARNING_RATE = 0.1
MOMENTUM = 0.9
WEIGHT_DECAY = 5e-4
# Each evaluation but the last takes a part of the test images, to save time.
CURVE_IMAGES = 1000
EVALUATION_BATCH = 50  # a core evaluates 1,000 images in 0.13 s, in batches of 250 in 0.24

Batch = tuple[torch.Tensor, torch.Tensor]


class ImageBatches(Dataset[Batch]):
    """Labelled images, indexed by lists: float32 (n, 1, 28, 28), standardised, and int64 (n,)."""

    def __init__(self, images: np.ndarray, labels: np.ndarray, *, mean: float, deviation: float) -> None:
        self._images = torch.from_numpy(np.array(images)).unsqueeze(1)
        self._labels = torch.from_numpy(np.array(labels))
        self._mean = mean
        self._deviation = deviation

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: list[int]) -> Batch:
        return (self._images[index].float() - self._mean) / self._deviation, self._labels[index]


def run(
    replica: DistributedDataParallel,
    images: Images,
    state: BoundedLossState | TimedState,
    *,
    steps: int,
    batch: int,
    seed: int,
    evaluations: int,
    report: Callable[[StepDone | Evaluated], None],
) -> float:
    """Train for ``steps`` steps of ``batch`` images per worker; returns the accuracy on all test images.

    ``evaluations``: points of the accuracy curve.
    """
    mean, deviation = float(images.train_images.mean()), float(images.train_images.std())
    train_set = ImageBatches(images.train_images, images.train_labels, mean=mean, deviation=deviation)
    test_set = ImageBatches(images.test_images, images.test_labels, mean=mean, deviation=deviation)
    optimizer = torch.optim.SGD(
        replica.parameters(), PEAK_LEARNING_RATE, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY, nesterov=True
    )
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, PEAK_LEARNING_RATE, total_steps=steps)
    batches = endless(train_set, batch=batch, seed=seed)
    every = max(1, steps // evaluations)
    for step in range(steps):
        report(train_step(replica, optimizer, next(batches), state, step))
        schedule.step()
        if (step + 1) % every == 0 and step + 1 < steps:
            report(evaluate(replica, test_set, step=step + 1, limit=CURVE_IMAGES))
    last = evaluate(replica, test_set, step=steps, limit=len(test_set))
    report(last)
    return last.accuracy


def endless(images: ImageBatches, *, batch: int, seed: int) -> Iterator[Batch]:
    """This rank's batches, epoch after epoch; the same seed gives the same order.

    Raises DemoError when there are too few images for one batch per worker.
    """
    if len(images) < batch * dist.get_world_size():
        raise DemoError(
            f"{len(images)} images are too few for {dist.get_world_size()} workers with batches of {batch}; "
            "choose fewer --workers or --data fashion-mnist"
        )
    # (A distributed sampler yields indices; torch's annotations claim the data set's items.)
    sampler: DistributedSampler[Any] = DistributedSampler(images, shuffle=True, seed=seed, drop_last=True)
    loader: DataLoader[Batch] = DataLoader(
        images, sampler=BatchSampler(sampler, batch, drop_last=True), batch_size=None
    )
    epoch = 0
    while True:
        sampler.set_epoch(epoch)
        yield from loader
        epoch += 1


def train_step(
    replica: DistributedDataParallel,
    optimizer: torch.optim.Optimizer,
    batch: Batch,
    state: BoundedLossState | TimedState,
    step: int,
) -> StepDone:
    """One forward, backward and update; the gradients are averaged inside ``backward``."""
    started = time.perf_counter()
    images, labels = batch
    optimizer.zero_grad()
    logits = replica(images)
    loss = nn.functional.cross_entropy(logits, labels)
    torch.autograd.backward(loss)
    optimizer.step()
    seconds = time.perf_counter() - started
    gradients = state.latest
    if gradients is None or gradients.step != step:
        raise RuntimeError(f"step {step} ended, but the last synchronised gradients are of {gradients}")
    return StepDone(
        rank=dist.get_rank(),
        step=step,
        loss=loss.item(),
        accuracy=(logits.argmax(1) == labels).float().mean().item(),
        seconds=seconds,
        sync_seconds=gradients.sync_seconds,
        exposed_seconds=gradients.exposed_seconds,
        buckets=gradients.buckets,
        bytes=gradients.bytes,
        missing_bytes=gradients.missing_bytes,
        repairs=gradients.repairs,
    )


def evaluate(replica: DistributedDataParallel, images: ImageBatches, *, step: int, limit: int) -> Evaluated:
    """Accuracy on the first ``limit`` images, divided among the workers."""
    share_batch_norm(replica.module)
    count = min(limit, len(images))
    mine = list(range(dist.get_rank(), count, dist.get_world_size()))
    correct = 0
    replica.module.eval()
    with torch.no_grad():
        for first in range(0, len(mine), EVALUATION_BATCH):
            x, labels = images[mine[first : first + EVALUATION_BATCH]]
            correct += int((replica.module(x).argmax(1) == labels).sum())
    replica.module.train()
    total = torch.tensor([correct])
    dist.all_reduce(total)
    return Evaluated(rank=dist.get_rank(), step=step, images=count, accuracy=int(total) / count)


def share_batch_norm(module: nn.Module) -> None:
    """Copy rank 0's running statistics to every worker, as DDP does before each training forward but not before
    this."""
    running = [buffer for buffer in module.buffers() if buffer.is_floating_point()]
    flat = torch.cat([buffer.reshape(-1) for buffer in running])
    dist.broadcast(flat, src=0)
    for buffer, values in zip(running, torch.split(flat, [buffer.numel() for buffer in running]), strict=True):
        buffer.copy_(values.view_as(buffer))
