"""``mlt.tensorflow.keras``: Horovod's API for Keras 3, ``import mlt.tensorflow.keras as hvd``.

The names of ``mlt.tensorflow`` that Keras programs use, ``callbacks``, and ``load_model``. The collectives take and
return values of numpy.
"""

from __future__ import annotations

import mlt.tensorflow.keras.backend  # noqa: F401 (before the first module that imports keras)
from mlt.tensorflow import elastic
from mlt.tensorflow.compression import Compression
from mlt.tensorflow.exchange import BoundedLossState
from mlt.tensorflow.keras import callbacks
from mlt.tensorflow.keras.models import PartialDistributedOptimizer, load_model
from mlt.tensorflow.keras.sync_batch_norm import SyncBatchNormalization
from mlt.tensorflow.keras.values import allgather, allreduce, broadcast, reducescatter
from mlt.tensorflow.optimizer import DistributedOptimizer

from mlt._gradients.loss import phases, warm_up
from mlt._named.basics import (
    ccl_built,
    cross_rank,
    cross_size,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    init,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rank,
    rocm_built,
    shutdown,
    size,
    start_timeline,
    stop_timeline,
)
from mlt._named.objects import allgather_object, broadcast_object
from mlt._named.process_sets import ProcessSet, add_process_set, global_process_set, remove_process_set
from mlt._named.reduce_ops import Adasum, Average, Max, Min, Product, Sum

__all__ = [
    "Adasum",
    "Average",
    "BoundedLossState",
    "Compression",
    "DistributedOptimizer",
    "Max",
    "Min",
    "PartialDistributedOptimizer",
    "ProcessSet",
    "Product",
    "Sum",
    "SyncBatchNormalization",
    "add_process_set",
    "allgather",
    "allgather_object",
    "allreduce",
    "broadcast",
    "broadcast_object",
    "callbacks",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "elastic",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "init",
    "is_homogeneous",
    "is_initialized",
    "load_model",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "phases",
    "rank",
    "reducescatter",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
    "warm_up",
]
