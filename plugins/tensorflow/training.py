"""``DistributedOptimizer`` with the arguments of ``horovod.tensorflow``, whose order is not that of
``horovod.tensorflow.keras``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from mlt.tensorflow import optimizer as of_keras
from mlt.tensorflow.compression import Compression, Compressor

from mlt._gradients.loss import LossSchedule
from mlt._named.gradients import BoundedLossState
from mlt._named.process_sets import ProcessSet, global_process_set
from mlt._named.reduce_ops import Average, ReduceOp


def DistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    use_locking: bool = False,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    sparse_as_dense: bool = False,
    backward_passes_per_step: int = 1,
    op: ReduceOp = Average,
    gradient_predivide_factor: float = 1.0,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
    *,
    loss_bound: float | str | LossSchedule | BoundedLossState | None = None,
    local_variables: Iterable[Any] = (),
) -> Any:
    """``mlt.tensorflow.keras.DistributedOptimizer``, for an optimizer of Keras 3. Raises ValueError for
    ``use_locking``, which only optimizers of TensorFlow 1 have."""
    if use_locking:
        raise ValueError("use_locking=True is for optimizers of TensorFlow 1: leave it out with those of Keras")
    return of_keras.DistributedOptimizer(
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
        num_groups=num_groups,
        groups=groups,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
        loss_bound=loss_bound,
        local_variables=local_variables,
    )
