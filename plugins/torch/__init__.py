"""``mlt.torch``: train with PyTorch over the bounded-loss transport.

- ``torch.distributed.init_process_group("mlt")`` after ``import mlt.torch``: the exact collectives (parameters, batch
  norm statistics, shapes, barriers), never lossy.
- ``ddp.register_comm_hook(BoundedLossState(loss_bound=0.1), bounded_loss_hook)``: gradients, averaged through the
  summation services, with the loss the caller allowed and not more.

This sub-package is the only part of mlt's library that imports torch.
"""

from __future__ import annotations

from mlt.torch.hook import BoundedLossState, bounded_loss_hook
from mlt.torch.process_group import MltProcessGroup, current_context, register_backend, use_context
from mlt.torch.statistics import StepStatistics

__all__ = [
    "BoundedLossState",
    "MltProcessGroup",
    "StepStatistics",
    "bounded_loss_hook",
    "current_context",
    "register_backend",
    "use_context",
]

register_backend()
