"""BytePS's API for TensorFlow: ``import mlt.tensorflow.byteps as bps`` in place of ``import byteps.tensorflow as bps``.

``mlt.tensorflow.byteps.keras`` takes the place of ``byteps.tensorflow.keras`` and of ``byteps.keras``. The workers sum
among themselves. docs/horovod.md has what differs from BytePS.
"""

from __future__ import annotations

from mlt.tensorflow.byteps import distribute
from mlt.tensorflow.byteps.optimizer import DistributedGradientTape, DistributedOptimizer
from mlt.tensorflow.byteps.push_pull import broadcast, push_pull
from mlt.tensorflow.byteps.variables import BroadcastGlobalVariablesHook, broadcast_variables
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
from mlt._named.reduce_ops import Adasum, Average, Sum

__all__ = [
    "Adasum",
    "Average",
    "BroadcastGlobalVariablesHook",
    "Compression",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "Sum",
    "broadcast",
    "broadcast_global_variables",
    "broadcast_variables",
    "distribute",
    "get_pushpull_speed",
    "init",
    "local_rank",
    "local_size",
    "push_pull",
    "rank",
    "resume",
    "shutdown",
    "size",
    "suspend",
]
