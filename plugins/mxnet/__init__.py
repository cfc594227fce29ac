"""``mlt.mxnet``: train with MXNet and Gluon over the bounded-loss transport; Horovod's names.

``import mlt.mxnet as hvd`` in place of ``import horovod.mxnet as hvd``.

- ``DistributedTrainer`` for Gluon, ``DistributedOptimizer`` for the Module API, ``kvstore="dist_sync_mlt"`` for both.
- Everything is exact unless the program asks: ``DistributedTrainer(..., loss_bound=0.1)`` or a schedule.
- The collectives are matched by name and not by the order of calls. A mistake is an error on every rank.

docs/mxnet.md has what is exact, limits, and what differs from Horovod. No other part of mlt imports MXNet, and this one
imports no other framework.
"""

from __future__ import annotations

import mlt.mxnet.requirement  # noqa: F401 (before the first module that imports mxnet)
from mlt.mxnet import kvstore as _kvstore  # noqa: F401 (registers it)
from mlt.mxnet.collectives import (
    allgather,
    allreduce,
    allreduce_,
    alltoall,
    broadcast,
    broadcast_,
    grouped_allgather,
    grouped_allreduce,
    grouped_allreduce_,
    grouped_broadcast_,
    grouped_reducescatter,
    reducescatter,
)
from mlt.mxnet.compression import Compression
from mlt.mxnet.optimizer import DistributedOptimizer
from mlt.mxnet.parameters import broadcast_parameters
from mlt.mxnet.trainer import DistributedTrainer

from mlt._gradients.loss import LossSchedule, lossy, phases, warm_up
from mlt._gradients.statistics import StepStatistics
from mlt._named import api
from mlt._named.api import *  # noqa: F403 (its names are in __all__)
from mlt._named.gradients import BoundedLossState

__all__ = [
    "BoundedLossState",
    "Compression",
    "DistributedOptimizer",
    "DistributedTrainer",
    "LossSchedule",
    "StepStatistics",
    "allgather",
    "allreduce",
    "allreduce_",
    "alltoall",
    "broadcast",
    "broadcast_",
    "broadcast_parameters",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_broadcast_",
    "grouped_reducescatter",
    "lossy",
    "phases",
    "reducescatter",
    "warm_up",
]
__all__ += api.__all__
