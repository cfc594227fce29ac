"""BytePS's API for MXNet: ``import mlt.mxnet.byteps as bps`` in place of ``import byteps.mxnet as bps``.

The workers sum among themselves. docs/horovod.md has what differs from BytePS.
"""

from __future__ import annotations

from mlt.mxnet.byteps.push_pull import byteps_declare_tensor, byteps_push_pull
from mlt.mxnet.byteps.trainer import DistributedTrainer
from mlt.mxnet.byteps.training import DistributedOptimizer, broadcast_parameters
from mlt.mxnet.compression import Compression

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
    "DistributedTrainer",
    "broadcast_parameters",
    "byteps_declare_tensor",
    "byteps_push_pull",
    "get_pushpull_speed",
    "init",
    "local_rank",
    "local_size",
    "rank",
    "resume",
    "shutdown",
    "size",
    "suspend",
]
