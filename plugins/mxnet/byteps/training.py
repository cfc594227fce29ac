"""``DistributedOptimizer`` and ``broadcast_parameters`` with BytePS's arguments, for the Module API."""

from __future__ import annotations

from typing import Any

from mlt.mxnet import optimizer, parameters

import mxnet as mx


class DistributedOptimizer(optimizer.DistributedOptimizer):
    """Averages gradients over all workers, then updates as ``optimizer`` does. For ``Module.init_optimizer``.

    It is that of ``mlt.mxnet``: all gradients of a step travel together, the front layers with the highest priority.
    """

    def __init__(self, optimizer: mx.optimizer.Optimizer) -> None:
        super().__init__(optimizer)


def broadcast_parameters(params: Any, root_rank: int = 0) -> None:
    """Replace parameters by those of ``root_rank``: a dict of arrays, as of ``Module.get_params()``.

    Gluon's are accepted too, though ``DistributedTrainer`` sends them in its first step. Raises ValueError for others,
    HorovodInternalError if names, shapes or element types differ between workers.
    """
    parameters.broadcast_parameters(params, root_rank)
