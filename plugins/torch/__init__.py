"""``mlt.torch``: train with PyTorch over the bounded-loss transport.

- ``torch.distributed.init_process_group("mlt")`` after ``import mlt.torch``: the exact collectives (parameters, batch
  norm statistics, shapes, barriers), without loss.
- ``ddp.register_comm_hook(BoundedLossState(loss_bound=0.1), bounded_loss_hook)``: gradients, averaged by the summation
  services, with loss up to the caller's loss bound.

No other part of mlt's library imports torch.
"""

from __future__ import annotations

from mlt.torch.contexts import current_context, use_context
from mlt.torch.hook import BoundedLossState, bounded_loss_hook
from mlt.torch.process_group import MltProcessGroup, register_backend
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
