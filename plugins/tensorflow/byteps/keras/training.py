"""Optimizers and saved models of Keras, and collectives on values, with BytePS's arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mlt.tensorflow import optimizer as keras_optimizer
from mlt.tensorflow.byteps.push_pull import broadcast as broadcast_tensor
from mlt.tensorflow.byteps.push_pull import push_pull as push_pull_tensor
from mlt.tensorflow.compression import Compression, Compressor
from mlt.tensorflow.keras import models

import tensorflow as tf


def DistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    sparse_as_dense: bool = False,
) -> Any:
    """The optimizer of Keras with gradients averaged over all workers; that of ``mlt.tensorflow``."""
    return keras_optimizer.DistributedOptimizer(
        optimizer, name, device_dense, device_sparse, compression, sparse_as_dense
    )


def push_pull(value: Any, name: str | None = None, average: bool = True) -> tf.Tensor:
    """The average or sum of a value over all workers, as a tensor. ``name``: the same on all workers."""
    return push_pull_tensor(value, scope=name or "", op="Average" if average else "Sum")


def broadcast(value: Any, root_rank: int, name: str | None = None) -> tf.Tensor:
    """The value of ``root_rank``, as a tensor. ``name``: the same on all workers."""
    return broadcast_tensor(value, root_rank, name=name, is_variable=False)


def load_model(
    filepath: Any,
    custom_optimizers: Sequence[Any] | None = None,
    custom_objects: dict[str, Any] | None = None,
    compression: type[Compressor] = Compression.none,
) -> Any:
    """A saved model, whose optimizer becomes a ``DistributedOptimizer`` with the state that was saved."""
    return models.load_model(filepath, custom_optimizers, custom_objects, compression)
