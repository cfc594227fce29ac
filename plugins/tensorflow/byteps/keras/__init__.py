"""BytePS's API for Keras 3: ``import mlt.tensorflow.byteps.keras as bps`` in place of ``byteps.tensorflow.keras``."""

from __future__ import annotations

import mlt.tensorflow.keras.backend  # noqa: F401 (before the first module that imports keras)
from mlt.tensorflow.byteps.keras import callbacks
from mlt.tensorflow.byteps.keras.training import DistributedOptimizer, broadcast, load_model, push_pull
from mlt.tensorflow.compression import Compression
from mlt.tensorflow.variables import broadcast_global_variables

from mlt._named.byteps import (
    get_pushpull_speed,
    init,
    local_rank,
    local_size,
    rank,
    resume,
    shutdown,
    size,
    suspend,
)

__all__ = [
    "Compression",
    "DistributedOptimizer",
    "broadcast",
    "broadcast_global_variables",
    "callbacks",
    "get_pushpull_speed",
    "init",
    "load_model",
    "local_rank",
    "local_size",
    "push_pull",
    "rank",
    "resume",
    "shutdown",
    "size",
    "suspend",
]
