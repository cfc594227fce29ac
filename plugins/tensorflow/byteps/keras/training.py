"""Optimizers and saved models of Keras, and collectives on values, with BytePS's arguments."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from mlt.tensorflow import optimizer as keras_optimizer
from mlt.tensorflow.byteps import asynchronous
from mlt.tensorflow.byteps.push_pull import broadcast as broadcast_tensor
from mlt.tensorflow.byteps.push_pull import push_pull as push_pull_tensor
from mlt.tensorflow.compression import Compression, Compressor
from mlt.tensorflow.keras import models
from mlt.tensorflow.placement import check_devices

import tensorflow as tf
from mlt._named.byteps import is_asynchronous, refuse_asynchronous


def DistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    sparse_as_dense: bool = False,
) -> Any:
    """The optimizer of Keras with gradients averaged over all workers; that of ``mlt.tensorflow``.

    With BYTEPS_ENABLE_ASYNC=1 they are not averaged (``mlt.tensorflow.byteps.asynchronous``).
    """
    if is_asynchronous(os.environ):
        check_devices(device_dense=device_dense, device_sparse=device_sparse)
        return asynchronous.optimizer_of(optimizer, name, compression, 1)
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
    """A saved model, whose optimizer becomes a ``DistributedOptimizer`` with the state that was saved.

    Raises ConfigError for asynchronous training.
    """
    refuse_asynchronous("load_model")
    return models.load_model(filepath, custom_optimizers, custom_objects, compression)
