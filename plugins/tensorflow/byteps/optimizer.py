"""``DistributedOptimizer`` and ``DistributedGradientTape`` with BytePS's arguments."""

from __future__ import annotations

import os
from typing import Any

from mlt.tensorflow import optimizer as keras_optimizer
from mlt.tensorflow import tape
from mlt.tensorflow.byteps import asynchronous
from mlt.tensorflow.byteps.wrapped import WrappedOptimizer
from mlt.tensorflow.compression import Compression, Compressor
from mlt.tensorflow.exchange import GradientExchange
from mlt.tensorflow.placement import check_devices

import tensorflow as tf
from mlt._named.byteps import is_asynchronous, reduction, refuse_asynchronous
from mlt._named.reduce_ops import Average, ReduceOp


class _DistributedOfTensorFlow1(WrappedOptimizer):
    """An optimizer of TensorFlow 1 whose ``compute_gradients`` averages over all workers."""

    def __init__(self, optimizer: Any, name: str, use_locking: bool, exchange: GradientExchange) -> None:
        super().__init__(optimizer, name, use_locking)
        self._exchange = exchange

    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        """Pairs of averaged gradient and variable."""
        pairs = super().compute_gradients(*args, **kwargs)
        variables = [variable for _, variable in pairs]
        return list(zip(self._exchange([one for one, _ in pairs], variables), variables, strict=True))


def DistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    use_locking: bool = False,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    sparse_as_dense: bool = False,
    backward_passes_per_step: int = 1,
    op: ReduceOp | str = Average,
) -> Any:
    """An optimizer whose gradients are averaged over all workers: of Keras 3, or of TensorFlow 1 (``tf.compat.v1``).

    Of Keras it is that of ``mlt.tensorflow``. All gradients of a step are one exchange. ``backward_passes_per_step``:
    steps whose gradients are added up before (Keras only). With BYTEPS_ENABLE_ASYNC=1 they are not averaged
    (``mlt.tensorflow.byteps.asynchronous``). Raises ValueError for an ``op`` other than Average and Sum,
    a device other than the CPU, and arguments that this kind of optimizer does not have.
    """
    chosen = reduction(op)
    if not isinstance(optimizer, tf.compat.v1.train.Optimizer):
        if use_locking:
            raise ValueError("use_locking=True is for optimizers of TensorFlow 1: leave it out with those of Keras")
        if is_asynchronous(os.environ):
            check_devices(device_dense=device_dense, device_sparse=device_sparse)
            return asynchronous.optimizer_of(optimizer, name, compression, backward_passes_per_step)
        return keras_optimizer.DistributedOptimizer(
            optimizer,
            name,
            device_dense,
            device_sparse,
            compression,
            sparse_as_dense,
            op=chosen,
            backward_passes_per_step=backward_passes_per_step,
        )
    check_devices(device_dense=device_dense, device_sparse=device_sparse)
    if backward_passes_per_step != 1:
        raise ValueError(
            f"backward_passes_per_step={backward_passes_per_step} is for optimizers of Keras: leave it out with those "
            "of TensorFlow 1"
        )
    if isinstance(optimizer, _DistributedOfTensorFlow1 | asynchronous.OfTensorFlow1):
        raise ValueError("the optimizer is a DistributedOptimizer already: its gradients would be averaged twice")
    label = name or f"Distributed{type(optimizer).__name__}"
    if is_asynchronous(os.environ):
        asynchronous.check_compression(compression)
        return asynchronous.OfTensorFlow1(optimizer, label, use_locking)
    exchange = GradientExchange(
        f"gradients of {label}", op=chosen, compression=compression, sparse_as_dense=sparse_as_dense
    )
    return _DistributedOfTensorFlow1(optimizer, label, use_locking, exchange)


def DistributedGradientTape(
    gradtape: tf.GradientTape,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    sparse_as_dense: bool = False,
    op: ReduceOp | str = Average,
) -> Any:
    """A tape that continues ``gradtape``, and whose ``gradient`` averages over all workers.

    It is that of ``mlt.tensorflow``. Raises ValueError for an ``op`` other than Average and Sum, and a device other
    than the CPU; ConfigError for asynchronous training.
    """
    refuse_asynchronous("DistributedGradientTape")
    return tape.DistributedGradientTape(
        gradtape, device_dense, device_sparse, compression, sparse_as_dense, op=reduction(op)
    )
