"""Horovod's API over mlt: ``import mlt.torch.horovod as hvd`` in place of ``import horovod.torch as hvd``.

Tensors are matched by name and not by the order of calls, mistakes are errors on every rank after which the next call
works, and everything is exact unless the program asks (``DistributedOptimizer(loss_bound=)``, ``mlt.torch.lossy``).
docs/horovod.md has what differs from Horovod.
"""

from __future__ import annotations

from mlt.torch.horovod import elastic
from mlt.torch.horovod.compression import Compression
from mlt.torch.horovod.functions import broadcast_optimizer_state, broadcast_parameters
from mlt.torch.horovod.handles import poll, synchronize
from mlt.torch.horovod.movement import (
    allgather,
    allgather_async,
    alltoall,
    alltoall_async,
    broadcast,
    broadcast_,
    broadcast_async,
    broadcast_async_,
    grouped_allgather,
    grouped_allgather_async,
)
from mlt.torch.horovod.optimizer import DistributedOptimizer
from mlt.torch.horovod.reduce import (
    allreduce,
    allreduce_,
    allreduce_async,
    allreduce_async_,
    grouped_allreduce,
    grouped_allreduce_,
    grouped_allreduce_async,
    grouped_allreduce_async_,
    sparse_allreduce_async,
)
from mlt.torch.horovod.scatter import (
    grouped_reducescatter,
    grouped_reducescatter_async,
    reducescatter,
    reducescatter_async,
)
from mlt.torch.horovod.sync_batch_norm import SyncBatchNorm

from mlt._named import api
from mlt._named.api import *  # noqa: F403 (its names are in __all__)

__all__ = [
    "Compression",
    "DistributedOptimizer",
    "SyncBatchNorm",
    "allgather",
    "allgather_async",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "elastic",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "poll",
    "reducescatter",
    "reducescatter_async",
    "sparse_allreduce_async",
    "synchronize",
]
__all__ += api.__all__
