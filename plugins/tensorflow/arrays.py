"""TensorFlow's tensors as the memory that the transport reads and writes, without copies where TensorFlow allows it.

An input is read where it lies. A result is written to memory that begins at a multiple of 64 bytes, which TensorFlow
takes over as it is; it copies others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

import tensorflow as tf
from mlt._named import elements
from mlt._named.elements import Bytes
from mlt._named.requests import Spec

Array = npt.NDArray[Any]

_ALIGNMENT: Final = 64
DTYPES: Final = {
    tf.bool: "bool",
    tf.uint8: "uint8",
    tf.int8: "int8",
    tf.int16: "int16",
    tf.int32: "int32",
    tf.int64: "int64",
    tf.float16: "float16",
    tf.bfloat16: "bfloat16",
    tf.float32: "float32",
    tf.float64: "float64",
}


def name_of(dtype: tf.DType, what: str) -> str:
    """mlt's name of an element type; raises TypeError for one that cannot be sent. ``what``: of the tensor."""
    name = DTYPES.get(tf.as_dtype(dtype))
    if name is None:
        raise TypeError(
            f"{what} has the element type {tf.as_dtype(dtype).name}, which mlt does not send: cast it to one of "
            f"{', '.join(DTYPES.values())}"
        )
    return name


def aligned(size: int) -> Bytes:
    """Memory of ``size`` bytes, not initialised."""
    raw = np.empty(size + _ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % _ALIGNMENT
    return raw[start : start + size]


class Arrays:
    """The tensors of one operation, as numpy's arrays (TensorFlow adds bfloat16 to numpy's types)."""

    def __init__(self, inputs: Sequence[Array]) -> None:
        self._inputs = [np.ascontiguousarray(one).reshape(one.shape) for one in inputs]
        self._outputs: list[Array | None] = [None] * len(inputs)

    @property
    def specs(self) -> tuple[Spec, ...]:
        """Element type and shape of each."""
        return tuple((name_of(one.dtype, "a tensor"), one.shape) for one in self._inputs)

    def input(self, index: int) -> Bytes:
        return _bytes(self._inputs[index])

    def allocate(self, index: int, shape: tuple[int, ...]) -> Bytes:
        dtype = self._inputs[index].dtype
        flat = aligned(elements.elements(shape) * dtype.itemsize)
        self._outputs[index] = flat.view(dtype).reshape(shape)
        return flat

    def results(self) -> list[Array]:
        """The outputs, after the operation."""
        return [one for one in self._outputs if one is not None]


def _bytes(array: Array) -> Bytes:
    flat: Bytes = array.reshape(-1).view(np.uint8)
    return flat


def array_of(tensor: tf.Tensor) -> Array:
    """The memory of an eager tensor; read only."""
    if "CPU" not in tensor.device:
        with tf.device("CPU:0"):
            tensor = tf.identity(tensor)
    if tensor.dtype == tf.bfloat16:  # has no form in Python's buffers
        array = np.asarray(memoryview(tf.bitcast(tensor, tf.uint16)))
        return array.view(tf.bfloat16.as_numpy_dtype)
    return np.asarray(memoryview(tensor))


def tensor_of(array: Array) -> tf.Tensor:
    """A tensor over the memory of an array, which the caller must no longer write to."""
    if array.dtype == tf.bfloat16.as_numpy_dtype:
        return tf.bitcast(tensor_of(array.view(np.uint16)), tf.bfloat16)
    return tf.experimental.dlpack.from_dlpack(array.__dlpack__())
