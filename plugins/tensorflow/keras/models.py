"""Saved models, and optimizers of models of which some layers are this rank's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
from mlt.tensorflow.compression import Compression, Compressor
from mlt.tensorflow.optimizer import DistributedOptimizer


def load_model(
    filepath: Any,
    custom_optimizers: Sequence[Any] | None = None,
    custom_objects: dict[str, Any] | None = None,
    compression: type[Compressor] = Compression.none,
    legacy_opts: bool = False,
    **options: Any,
) -> Any:
    """A saved model, whose optimizer becomes a ``DistributedOptimizer`` with the state that was saved.

    ``custom_optimizers``: classes of optimizers that Keras does not know. ``options``: of ``DistributedOptimizer``.
    Raises ValueError for ``legacy_opts``, which Keras 3 does not have.
    """
    if legacy_opts:
        raise ValueError("legacy_opts=True is not possible: Keras 3 has no legacy optimizers; leave legacy_opts out")
    known = {**{one.__name__: one for one in custom_optimizers or ()}, **(custom_objects or {})}
    model = keras.models.load_model(filepath, custom_objects=known)
    if getattr(model, "optimizer", None) is not None:
        model.optimizer = DistributedOptimizer(model.optimizer, compression=compression, **options)
    return model


def PartialDistributedOptimizer(optimizer: Any, *args: Any, local_layers: Any = None, **options: Any) -> Any:
    """A ``DistributedOptimizer`` that leaves the gradients of ``local_layers``, a layer or a list, to each rank."""
    layers = [] if local_layers is None else local_layers if isinstance(local_layers, list | tuple) else [local_layers]
    variables = [variable for layer in layers for variable in layer.trainable_variables]
    return DistributedOptimizer(optimizer, *args, local_variables=variables, **options)
