"""``mlt.tensorflow.keras``: Horovod's API for Keras 3, ``import mlt.tensorflow.keras as hvd``.

The names of ``mlt.tensorflow`` that Keras programs use, ``callbacks``, and ``load_model``. The collectives take and
return values of numpy.
"""

from __future__ import annotations

import mlt.tensorflow.keras.backend  # noqa: F401 (before the first module that imports keras)
from mlt.tensorflow import elastic
from mlt.tensorflow.compression import Compression
from mlt.tensorflow.keras import callbacks
from mlt.tensorflow.keras.models import PartialDistributedOptimizer, load_model
from mlt.tensorflow.keras.sync_batch_norm import SyncBatchNormalization
from mlt.tensorflow.keras.values import allgather, allreduce, broadcast, reducescatter
from mlt.tensorflow.optimizer import DistributedOptimizer
from mlt.tensorflow.variables import broadcast_global_variables

from mlt._gradients.loss import phases, warm_up
from mlt._named import api
from mlt._named.api import *  # noqa: F403 (its names are in __all__)
from mlt._named.gradients import BoundedLossState

__all__ = [
    "BoundedLossState",
    "Compression",
    "DistributedOptimizer",
    "PartialDistributedOptimizer",
    "SyncBatchNormalization",
    "allgather",
    "allreduce",
    "broadcast",
    "broadcast_global_variables",
    "callbacks",
    "elastic",
    "load_model",
    "phases",
    "reducescatter",
    "warm_up",
]
__all__ += api.__all__
