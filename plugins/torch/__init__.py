"""``mlt.torch``: train with PyTorch over the bounded-loss transport.

- ``torch.distributed.init_process_group("mlt")``, without an import: the exact collectives (parameters, batch norm
  statistics, shapes, barriers), without loss.
- ``ddp.register_comm_hook(BoundedLossState(loss_bound=0.1), bounded_loss_hook)``: gradients, averaged with loss up to
  the caller's loss bound, which may be a schedule (``warm_up``, ``phases``); with ``lossy_results`` both ways.
- ``LossyReduceScatter(loss_bound=0.1).set_on(model)``: the same for FSDP2.
- ``with lossy(0.1)``: the same for sums that the program calls itself.
- ``pg_options=Options(loss_bound=0.1)``: the same for all sums of one process group.
- ``verify_replicas(model)``: whether all ranks have the same bits.

No other part of mlt's library imports torch.
"""

from __future__ import annotations

import mlt.torch.requirement  # noqa: F401 (before the first module that imports torch)
from mlt.torch.contexts import current_context, use_context
from mlt.torch.fsdp import LossyReduceScatter
from mlt.torch.group_options import Options
from mlt.torch.hook import BoundedLossState, bounded_loss_hook
from mlt.torch.process_group import MltProcessGroup
from mlt.torch.registration import register_backend
from mlt.torch.replicas import verify_replicas
from mlt.torch.resynchronisation import Drift

from mlt._gradients.loss import LossSchedule, lossy, phases, warm_up
from mlt._gradients.statistics import StepStatistics

__all__ = [
    "BoundedLossState",
    "Drift",
    "LossSchedule",
    "LossyReduceScatter",
    "MltProcessGroup",
    "Options",
    "StepStatistics",
    "bounded_loss_hook",
    "current_context",
    "lossy",
    "phases",
    "register_backend",
    "use_context",
    "verify_replicas",
    "warm_up",
]

register_backend()
