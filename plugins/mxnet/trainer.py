"""``DistributedTrainer``: Gluon's trainer, whose gradients are averaged over all ranks."""

from __future__ import annotations

import warnings
from typing import Any

from mlt.mxnet.compression import Compression, Compressor
from mlt.mxnet.exchange import GradientExchange
from mlt.mxnet.optimizer import DistributedOptimizer

import mxnet as mx
from mlt._gradients.loss import LossSchedule
from mlt._named.gradients import BoundedLossState, loss_state
from mlt._named.process_sets import ProcessSet, global_process_set


class DistributedTrainer(mx.gluon.Trainer):
    """``gluon.Trainer`` that averages gradients over all ranks in ``step`` and ``allreduce_grads``.

    ``step(batch_size)`` takes the batch of this rank, as in Horovod. ``optimizer`` and ``optimizer_params``: as Gluon
    takes them. ``compression`` of gradients; ``gradient_predivide_factor``: part of the division that comes before the
    sum; ``prefix``: differs between the trainers of a program; ``num_groups``: number of operations of a step, 0: by
    size. ``loss_bound``: fraction of the gradients that may be lost in each hop of a sum, or a schedule, or a
    ``BoundedLossState``; None: exact. ``loss_state`` has the statistics of the steps.

    Raises ValueError for parameters on several devices: each rank has one.
    """

    def __init__(
        self,
        params: Any,
        optimizer: Any,
        optimizer_params: Any = None,
        compression: type[Compressor] = Compression.none,
        gradient_predivide_factor: float = 1.0,
        prefix: str | None = None,
        num_groups: int = 0,
        process_set: ProcessSet = global_process_set,
        *,
        loss_bound: float | str | LossSchedule | BoundedLossState | None = None,
    ) -> None:
        if isinstance(optimizer, DistributedOptimizer):
            warnings.warn("DistributedTrainer takes the optimizer itself, not a DistributedOptimizer", stacklevel=2)
            optimizer = optimizer.unwrapped
        super().__init__(params, optimizer, optimizer_params=optimizer_params, kvstore=None)
        self.loss_state = loss_state(loss_bound)
        self._exchange = GradientExchange(
            f"gradients of trainer {prefix}" if prefix else "gradients of the trainer",
            compression=compression,
            gradient_predivide_factor=gradient_predivide_factor,
            num_groups=num_groups,
            process_set=process_set,
            state=self.loss_state,
        )

    def _allreduce_grads(self) -> None:
        """Called by ``step`` and ``allreduce_grads``."""
        gradients, labels = [], []
        for param in self._params:
            if param.grad_req == "null":
                continue
            check_one_device(param)
            gradients += param.list_grad()
            labels.append(param.name)
        self._exchange(gradients, labels)


def check_one_device(param: Any) -> None:
    """Raise ValueError for a parameter on several devices."""
    devices = param.list_ctx()
    if len(devices) != 1:
        raise ValueError(
            f"parameter {param.name} is on {len(devices)} devices ({', '.join(map(str, devices))}): "
            "start one process for each, with mlt launch -n"
        )
