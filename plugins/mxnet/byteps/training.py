"""``DistributedOptimizer`` and ``broadcast_parameters`` with BytePS's arguments, for the Module API."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from mlt.mxnet import optimizer, parameters
from mlt.mxnet.byteps.asynchronous import SharedWeights

import mxnet as mx
from mlt._named.byteps import is_asynchronous


class DistributedOptimizer(optimizer.DistributedOptimizer):
    """Averages gradients over all workers, then updates as ``optimizer`` does. For ``Module.init_optimizer``.

    It is that of ``mlt.mxnet``: all gradients of a step travel together, the front layers with the highest priority.
    With BYTEPS_ENABLE_ASYNC=1 gradients are not averaged (``mlt.mxnet.byteps.asynchronous``).
    """

    _shared: SharedWeights | None

    def __init__(self, optimizer: mx.optimizer.Optimizer) -> None:
        super().__init__(optimizer)
        self._shared = SharedWeights() if is_asynchronous(os.environ) else None

    def update(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        if self._shared is None:
            super().update(index, weight, grad, state)
        else:
            self._update_shared(self._shared, self.unwrapped.update, index, weight, grad, state)

    def update_multi_precision(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        if self._shared is None:
            super().update_multi_precision(index, weight, grad, state)
        else:
            self._update_shared(self._shared, self.unwrapped.update_multi_precision, index, weight, grad, state)

    def _update_shared(
        self, shared: SharedWeights, update: Any, index: Any, weight: Any, grad: Any, state: Any
    ) -> None:
        weights = list(weight) if isinstance(index, Sequence) else [weight]
        shared.update(
            weights,
            self._names(index),
            self.unwrapped,
            lambda: self._update_with(update, index, weight, grad, state),
        )


def broadcast_parameters(params: Any, root_rank: int = 0) -> None:
    """Replace parameters by those of ``root_rank``: a dict of arrays, as of ``Module.get_params()``.

    Gluon's are accepted too, though ``DistributedTrainer`` sends them in its first step. Raises ValueError for others,
    HorovodInternalError if names, shapes or element types differ between workers.
    """
    parameters.broadcast_parameters(params, root_rank)
