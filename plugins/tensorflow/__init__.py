"""``mlt.tensorflow``: train with TensorFlow and Keras 3 over the bounded-loss transport; Horovod's names.

``import mlt.tensorflow as hvd`` in place of ``import horovod.tensorflow as hvd``, and ``import mlt.tensorflow.keras as
hvd`` in place of ``import horovod.tensorflow.keras as hvd``.

- ``DistributedOptimizer`` for ``model.fit``, ``DistributedGradientTape`` for training loops of one's own; both in eager
  execution and in ``tf.function``.
- Everything is exact unless the program asks: ``DistributedOptimizer(..., loss_bound=0.1)`` or a schedule.
- The collectives are matched by name and not by the order of calls. A mistake is an error on every rank.

docs/tensorflow.md has what is exact, limits, and what differs from Horovod. ``tf.distribute`` is left alone. No other
part of mlt imports TensorFlow, and this one imports no other framework.
"""

from __future__ import annotations

from typing import Any

import mlt.tensorflow.requirement  # noqa: F401 (before the first module that imports tensorflow)
from mlt.tensorflow import elastic
from mlt.tensorflow.collectives import (
    allgather,
    allreduce,
    alltoall,
    broadcast,
    grouped_allgather,
    grouped_allreduce,
    grouped_reducescatter,
    reducescatter,
)
from mlt.tensorflow.compression import Compression
from mlt.tensorflow.rank_ops import (
    allgather_object as _allgather_object,
)
from mlt.tensorflow.rank_ops import (
    broadcast_object as _broadcast_object,
)
from mlt.tensorflow.rank_ops import (
    broadcast_object_fn,
    local_rank_op,
    local_size_op,
    process_set_included_op,
    rank_op,
    size_op,
)
from mlt.tensorflow.tape import DistributedGradientTape
from mlt.tensorflow.training import DistributedOptimizer
from mlt.tensorflow.variables import broadcast_, broadcast_global_variables, broadcast_variables

from mlt._gradients.loss import LossSchedule, lossy, phases, warm_up
from mlt._gradients.statistics import StepStatistics
from mlt._named import api
from mlt._named.api import *  # noqa: F403 (its names are in __all__)
from mlt._named.gradients import BoundedLossState

__all__ = [
    "BoundedLossState",
    "Compression",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "LossSchedule",
    "StepStatistics",
    "SyncBatchNormalization",  # noqa: F405 (by __getattr__)
    "allgather",
    "allreduce",
    "alltoall",
    "broadcast",
    "broadcast_",
    "broadcast_global_variables",
    "broadcast_object_fn",
    "broadcast_variables",
    "elastic",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "local_rank_op",
    "local_size_op",
    "lossy",
    "phases",
    "process_set_included_op",
    "rank_op",
    "reducescatter",
    "size_op",
    "warm_up",
]
__all__ += api.__all__

# Horovod's for TensorFlow have an argument more than those of its other modules.
allgather_object = _allgather_object  # type: ignore[assignment]
broadcast_object = _broadcast_object  # type: ignore[assignment]


def __getattr__(name: str) -> Any:
    """``SyncBatchNormalization``, whose base class would import Keras."""
    if name == "SyncBatchNormalization":
        from mlt.tensorflow.keras.sync_batch_norm import SyncBatchNormalization

        return SyncBatchNormalization
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
