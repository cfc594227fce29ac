"""``DistributedOptimizer``: an optimizer of MXNet, for the Module API, whose gradients are averaged over all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from mlt.mxnet.compression import Compression, Compressor
from mlt.mxnet.exchange import GradientExchange

import mxnet as mx
from mlt._gradients.loss import LossSchedule
from mlt._named.gradients import BoundedLossState, loss_state
from mlt._named.process_sets import ProcessSet, global_process_set

_ALL: Final = 1 << 30
_OWN: Final = ("unwrapped", "loss_state", "_exchange", "_shared")


class DistributedOptimizer(mx.optimizer.Optimizer):
    """Averages gradients over all ranks, then updates as ``optimizer`` does. For ``Module.init_optimizer``.

    MXNet's updater gives it all gradients of a step at once. Arguments: as of ``DistributedTrainer``. All other
    attributes are those of ``optimizer``.
    """

    def __init__(
        self,
        optimizer: mx.optimizer.Optimizer,
        gradient_predivide_factor: float = 1.0,
        num_groups: int = 0,
        process_set: ProcessSet = global_process_set,
        *,
        compression: type[Compressor] = Compression.none,
        loss_bound: float | str | LossSchedule | BoundedLossState | None = None,
    ) -> None:
        if not isinstance(optimizer, mx.optimizer.Optimizer) or isinstance(optimizer, DistributedOptimizer):
            raise TypeError(
                f"DistributedOptimizer takes an optimizer of MXNet, such as mx.optimizer.SGD(), not {optimizer!r}"
            )
        self.unwrapped = optimizer
        self.loss_state = loss_state(loss_bound)
        self._exchange = GradientExchange(
            "gradients of the optimizer",
            compression=compression,
            gradient_predivide_factor=gradient_predivide_factor,
            num_groups=num_groups,
            process_set=process_set,
            state=self.loss_state,
        )

    def __getattr__(self, name: str) -> Any:
        if name in _OWN:
            raise AttributeError(name)  # before __init__
        return getattr(self.unwrapped, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _OWN:
            object.__setattr__(self, name, value)
        else:
            setattr(self.unwrapped, name, value)

    @property
    def aggregate_num(self) -> int:
        """Number of parameters that MXNet's updater gives to ``update_multi_precision`` at once: all."""
        return _ALL

    @property
    def learning_rate(self) -> float:
        """The optimizer's learning rate."""
        return float(self.unwrapped.learning_rate)

    def set_learning_rate(self, lr: float) -> None:
        """Set that of the optimizer."""
        self.unwrapped.set_learning_rate(lr)

    def set_lr_mult(self, args_lr_mult: Any) -> None:
        """Set those of the optimizer."""
        self.unwrapped.set_lr_mult(args_lr_mult)

    def set_wd_mult(self, args_wd_mult: Any) -> None:
        """Set those of the optimizer."""
        self.unwrapped.set_wd_mult(args_wd_mult)

    def create_state(self, index: Any, weight: mx.nd.NDArray) -> Any:
        return self.unwrapped.create_state(index, weight)

    def create_state_multi_precision(self, index: Any, weight: mx.nd.NDArray) -> Any:
        return self.unwrapped.create_state_multi_precision(index, weight)

    def update(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """Average and update. One parameter, or lists; as all others below."""
        self._average(index, grad)
        self._update_with(self.unwrapped.update, index, weight, grad, state)

    def update_multi_precision(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        self._average(index, grad)
        self._update_with(self.unwrapped.update_multi_precision, index, weight, grad, state)

    def _average(self, index: Any, grad: Any) -> None:
        self._exchange(list(grad) if isinstance(index, Sequence) else [grad], self._names(index))

    def _names(self, index: Any) -> list[str]:
        """The names of one parameter, or of several."""
        names = self.unwrapped.idx2name or {}
        return [str(names.get(one, f"parameter {one}")) for one in (index if isinstance(index, Sequence) else [index])]

    def _update_with(self, update: Any, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """Passes the optimizer as many parameters at once as it accepts."""
        if not isinstance(index, Sequence):
            update(index, weight, grad, state)
            return
        at_once = self.unwrapped.aggregate_num
        for start in range(0, len(index), at_once or 1):
            part = slice(start, start + at_once) if at_once else start
            update(index[part], weight[part], grad[part], state[part])
