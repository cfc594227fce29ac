"""A DDP communication hook over any backend that averages as DDP itself does, and measures the synchronisation.

This module has no ``from __future__ import annotations``: DDP compares the hook's annotations with the real types.
"""

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import GradBucket

from mlt._gradients.statistics import StepLog, StepStatistics


class TimedState:
    """Statistics of the steps, as ``BoundedLossState`` has them; nothing is ever missing."""

    def __init__(self, history: int = 1) -> None:
        self.log = StepLog(history)

    @property
    def latest(self) -> StepStatistics | None:
        """Statistics of the last finished step; None before the first."""
        return self.log.latest()


def timed_hook(state: TimedState, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Average the bucket over the default group: the sum of what each rank divided by the number of ranks."""
    step = state.log.push(first=bucket.index() == 0, last=bucket.is_last())
    buffer = bucket.buffer()
    buffer.div_(dist.get_world_size())
    work = dist.all_reduce(buffer, async_op=True)
    assert work is not None

    def finish(done: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
        averaged = done.value()[0]
        state.log.result(step, pushed_bytes=buffer.nbytes, missing_bytes=0, repairs=0)
        return averaged

    averaging: torch.futures.Future[torch.Tensor] = work.get_future().then(finish)
    return averaging
