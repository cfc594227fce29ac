"""``DistributedOptimizer`` and ``DistributedGradientTape`` with BytePS's arguments."""

from __future__ import annotations

from typing import Any

from mlt.tensorflow import optimizer as keras_optimizer
from mlt.tensorflow import tape
from mlt.tensorflow.compression import Compression, Compressor
from mlt.tensorflow.exchange import GradientExchange
from mlt.tensorflow.placement import check_devices

import tensorflow as tf
from mlt._named.byteps import reduction
from mlt._named.reduce_ops import Average, ReduceOp


class _DistributedOfTensorFlow1(tf.compat.v1.train.Optimizer):
    """An optimizer of TensorFlow 1 whose ``compute_gradients`` averages over all workers."""

    def __init__(self, optimizer: Any, name: str, use_locking: bool, exchange: GradientExchange) -> None:
        super().__init__(use_locking, name)
        self._optimizer = optimizer
        self._exchange = exchange

    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        """Pairs of averaged gradient and variable."""
        pairs = self._optimizer.compute_gradients(*args, **kwargs)
        variables = [variable for _, variable in pairs]
        return list(zip(self._exchange([one for one, _ in pairs], variables), variables, strict=True))

    def apply_gradients(self, *args: Any, **kwargs: Any) -> Any:
        return self._optimizer.apply_gradients(*args, **kwargs)

    def get_slot(self, *args: Any, **kwargs: Any) -> Any:
        return self._optimizer.get_slot(*args, **kwargs)

    def get_slot_names(self, *args: Any, **kwargs: Any) -> Any:
        return self._optimizer.get_slot_names(*args, **kwargs)

    def variables(self, *args: Any, **kwargs: Any) -> Any:
        return self._optimizer.variables(*args, **kwargs)


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
    steps whose gradients are added up before (Keras only). Raises ValueError for an ``op`` other than Average and Sum,
    a device other than the CPU, and arguments that this kind of optimizer does not have.
    """
    chosen = reduction(op)
    if not isinstance(optimizer, tf.compat.v1.train.Optimizer):
        if use_locking:
            raise ValueError("use_locking=True is for optimizers of TensorFlow 1: leave it out with those of Keras")
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
    if isinstance(optimizer, _DistributedOfTensorFlow1):
        raise ValueError("the optimizer is a DistributedOptimizer already: its gradients would be averaged twice")
    label = name or f"Distributed{type(optimizer).__name__}"
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
    than the CPU.
    """
    return tape.DistributedGradientTape(
        gradtape, device_dense, device_sparse, compression, sparse_as_dense, op=reduction(op)
    )
