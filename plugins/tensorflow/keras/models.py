"""Saved models, and optimizers of models of which some layers are this rank's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
from mlt.tensorflow.compression import Compression, Compressor
from mlt.tensorflow.optimizer import DistributedOptimizer

from mlt._gradients.loss import LossSchedule
from mlt._named.gradients import BoundedLossState
from mlt._named.process_sets import ProcessSet, global_process_set
from mlt._named.reduce_ops import Average, ReduceOp


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


def PartialDistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: ReduceOp = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
    *,
    loss_bound: float | str | LossSchedule | BoundedLossState | None = None,
) -> Any:
    """A ``DistributedOptimizer`` that leaves the gradients of ``local_layers``, a layer or a list, to each rank."""
    layers = [] if local_layers is None else local_layers if isinstance(local_layers, list | tuple) else [local_layers]
    variables = [variable for layer in layers for variable in layer.trainable_variables]
    return DistributedOptimizer(
        optimizer,
        name=name,
        device_dense=device_dense,
        device_sparse=device_sparse,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        gradient_predivide_factor=gradient_predivide_factor,
        op=op,
        backward_passes_per_step=backward_passes_per_step,
        average_aggregated_gradients=average_aggregated_gradients,
        groups=groups,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
        loss_bound=loss_bound,
        local_variables=variables,
    )
