"""Asynchronous training, which BYTEPS_ENABLE_ASYNC=1 asks for: no worker waits for another's step.

A step applies the optimizer to this worker's own gradients, adds the change of the variables to a sum that the workers
hold among themselves, and continues with the sum as of then.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from mlt.tensorflow.arrays import Array, aligned
from mlt.tensorflow.byteps.wrapped import WrappedOptimizer
from mlt.tensorflow.compression import Compression, Compressor
from mlt.tensorflow.exchange import label_of
from mlt.tensorflow.optimizer import check_plain, made_with
from mlt.tensorflow.requirement import require_keras_of_tensorflow
from mlt.tensorflow.stateful import call

import tensorflow as tf
from mlt._named.shared_sum import SharedParameters


class SharedVariables:
    """Variables whose changes are added to the sum of all workers; the same in every call."""

    def __init__(self) -> None:
        self._parameters = SharedParameters()

    def exchange(self, before: Sequence[tf.Tensor], variables: Sequence[Any]) -> Any:
        """Add the changes since ``before``, and assign the sum as of then; in a graph the operation that does so.

        Raises HorovodInternalError, in a graph one of ``tf.errors``.
        """
        names = [label_of(variable, number) for number, variable in enumerate(variables)]
        after = values_of(variables)

        def run(*arrays: Array) -> list[Array]:
            half = len(arrays) // 2
            return [_aligned(one) for one in self._parameters.exchange(arrays[half:], arrays[:half], names)]

        results = call(run, [*after, *before], [one.shape for one in after], "a variable")
        return tf.group(*[variable.assign(one) for variable, one in zip(variables, results, strict=True)])


def values_of(variables: Sequence[Any]) -> list[tf.Tensor]:
    """The present values of variables, of TensorFlow or Keras."""
    return [
        tf.identity(one.read_value() if isinstance(one, tf.Variable) else tf.convert_to_tensor(one))
        for one in variables
    ]


class _Asynchronous:
    """The part of an optimizer of Keras that stands before the class of the user's optimizer."""

    _shared: Any
    _passes: int
    gradient_accumulation_steps: int | None
    _iterations: Any
    _trainable_variables: list[Any]

    def apply(self, grads: Any, trainable_variables: Any = None) -> Any:
        """Apply this worker's gradients to the variables of all workers; called by Keras.

        The first step waits for that of all workers, and fails on all if their variables differ.
        """
        given = list(grads)
        if not given:
            return
        variables = list(self._trainable_variables if trainable_variables is None else trainable_variables)
        steps = self.gradient_accumulation_steps
        is_step = None if not steps else (tf.convert_to_tensor(self._iterations) + 1) % steps == 0
        before = values_of(variables)
        apply: Any = super().apply  # type: ignore[misc]
        apply(given, None if trainable_variables is None else variables)
        if is_step is None:
            self._shared.exchange(before, variables)
        else:
            tf.cond(is_step, lambda: self._exchanged(before, variables), lambda: tf.constant(False))

    def _exchanged(self, before: Sequence[tf.Tensor], variables: Sequence[Any]) -> tf.Tensor:
        done = self._shared.exchange(before, variables)
        with tf.control_dependencies([] if done is None else [done]):
            return tf.constant(True)

    def _clip_gradients(self, grads: Any) -> Any:
        """Called by Keras before an update, with the average of the accumulated gradients."""
        gradients = list(grads)
        if self.gradient_accumulation_steps and self._passes > 1:
            gradients = [one if one is None else one * self._passes for one in gradients]
        clip: Any = super()._clip_gradients  # type: ignore[misc]
        return clip(gradients)


class OfTensorFlow1(WrappedOptimizer):
    """An optimizer of TensorFlow 1 whose steps are added to the sum of all workers."""

    def __init__(self, optimizer: tf.compat.v1.train.Optimizer, name: str, use_locking: bool) -> None:
        super().__init__(optimizer, name, use_locking)
        self._shared = SharedVariables()

    def apply_gradients(self, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        """Apply this worker's gradients to the variables of all workers."""
        pairs = list(grads_and_vars)
        variables = [variable for _, variable in pairs]
        before = values_of(variables)
        with tf.control_dependencies(before):
            applied = super().apply_gradients(pairs, *args, **kwargs)
        with tf.control_dependencies([] if applied is None else [applied]):
            return self._shared.exchange(before, variables)


def optimizer_of(optimizer: Any, name: str | None, compression: type[Compressor], backward_passes_per_step: int) -> Any:
    """The optimizer of Keras whose steps are added to the sum of all workers; of its class too.

    Raises ValueError for a compression, TypeError for what is no optimizer of Keras 3.
    """
    require_keras_of_tensorflow("DistributedOptimizer")
    check_compression(compression)
    check_plain(optimizer)
    if isinstance(optimizer, _Asynchronous):
        raise ValueError("the optimizer is a DistributedOptimizer already: its steps would be added twice")
    made = made_with(_Asynchronous, optimizer, name, backward_passes_per_step)
    made._shared = SharedVariables()
    made._passes = backward_passes_per_step
    return made


def check_compression(compression: type[Compressor]) -> None:
    """Raise ValueError for a compression."""
    if compression is not Compression.none:
        raise ValueError("asynchronous training (BYTEPS_ENABLE_ASYNC=1) has no compression: leave it out")


def _aligned(array: Array) -> Array:
    """A copy in memory that TensorFlow takes over as it is."""
    flat = aligned(array.nbytes).view(array.dtype)
    flat[...] = array.reshape(-1)
    result: Array = np.reshape(flat, array.shape)
    return result
