"""MXNet's arrays as the memory that the transport reads and writes.

MXNet's operators run later, in threads of its engine, which orders them by the arrays that they read and write. Memory
that is read or written here must not wait for any: for an array that is read, all operators that write it have ended;
for one that is written, also those that read it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

import mxnet as mx
from mlt._named import elements
from mlt._named.elements import Bytes
from mlt._named.requests import Spec
from mxnet.base import _LIB, check_call

DTYPES: Final = ("bool", "uint8", "int8", "int32", "int64", "float16", "float32", "float64")
"""MXNet's element types that can be sent, and ``bfloat16``."""
_BFLOAT16: Final = np.dtype([("bfloat16", np.uint16)])  # MXNet's form of it in numpy


def dtype_of(array: mx.nd.NDArray) -> str:
    """mlt's name of the element type; raises TypeError for one that cannot be sent."""
    dtype = np.dtype(array.dtype)
    if dtype == _BFLOAT16:
        return elements.BFLOAT16
    if dtype.name not in DTYPES:
        raise TypeError(f"an array has the element type {dtype.name}, which mlt does not send: cast it to float32")
    return str(dtype.name)


def spec_of(array: mx.nd.NDArray) -> Spec:
    """Element type and shape."""
    return dtype_of(array), tuple(array.shape)


def check_dense(array: Any, what: str) -> None:
    """Raise TypeError unless this is a dense array of MXNet. ``what``: of the array, for errors."""
    if not isinstance(array, mx.nd.NDArray):
        raise TypeError(f"{what} is of {type(array).__name__}: give an array of MXNet, such as mx.nd.array(...)")
    if array.stype != "default":
        raise TypeError(
            f"{what} is sparse ({array.stype}), and mlt sends dense arrays: write array.tostype('default'), and for a "
            "gradient sparse_grad=False in its layer, or grad_stype='default' in its Parameter"
        )


class Arrays:
    """The arrays of one operation. Made by the thread that called for it, which waits for MXNet's engine here.

    ``in_place``: the results take the place of the arrays, whose memory the transport writes; otherwise new arrays. An
    array in another memory than the host's is copied, also back.
    """

    def __init__(self, arrays: Sequence[mx.nd.NDArray], *, in_place: bool = False) -> None:
        for array in arrays:
            check_dense(array, "an array")
        self._given = list(arrays)
        self.specs: tuple[Spec, ...] = tuple(map(spec_of, arrays))
        self._in_place = in_place
        self._inputs = [one if _is_on_host(one) else one.as_in_context(mx.cpu()) for one in arrays]
        self._memory = [
            _memory(one, dtype, is_written=in_place) for one, (dtype, _) in zip(self._inputs, self.specs, strict=True)
        ]
        self._outputs: list[mx.nd.NDArray | tuple[int, ...]] = list(self._inputs)
        """The results; for an array without elements its shape: MXNet's semantics of shapes are the calling
        thread's."""

    def input(self, index: int) -> Bytes:
        return self._memory[index]

    def allocate(self, index: int, shape: tuple[int, ...]) -> Bytes:
        if self._in_place:
            return self._memory[index]
        dtype, _ = self.specs[index]
        if not elements.elements(shape):
            self._outputs[index] = shape
            return np.empty(0, np.uint8)
        self._outputs[index] = made = mx.nd.empty(shape, mx.cpu(), self._inputs[index].dtype)
        return _memory(made, dtype, is_written=True)

    def results(self) -> list[mx.nd.NDArray]:
        """The results, after the operation, of the arrays' classes and in their contexts."""
        results = []
        for given, output in zip(self._given, self._outputs, strict=True):
            if self._in_place:
                if output is not given:
                    given[:] = output
                results.append(given)
                continue
            one = _without_elements(output, given.dtype) if isinstance(output, tuple) else output
            one = one if one.context == given.context else one.as_in_context(given.context)
            results.append(one.as_np_ndarray() if isinstance(given, mx.np.ndarray) else one)
        return results


def _without_elements(shape: tuple[int, ...], dtype: Any) -> mx.nd.NDArray:
    with mx.util.np_shape(True):
        return mx.nd.zeros(shape, dtype=dtype)


def _is_on_host(array: mx.nd.NDArray) -> bool:
    return bool(array.context.device_type == "cpu")


def _memory(array: mx.nd.NDArray, dtype: str, *, is_written: bool) -> Bytes:
    """The bytes of an array, once no operator of MXNet needs them. The array must outlive them."""
    wait = _LIB.MXNDArrayWaitToWrite if is_written else _LIB.MXNDArrayWaitToRead
    check_call(wait(array.handle))
    size = elements.elements(tuple(array.shape)) * elements.item_bytes(dtype)
    if not size:
        return np.empty(0, np.uint8)
    # Puts an array that oneDNN holds in an order of its own back into rows.
    pointer = ctypes.c_void_p()
    check_call(_LIB.MXNDArrayGetData(array.handle, ctypes.byref(pointer)))
    assert pointer.value is not None, "an array of MXNet without memory"
    flat: Bytes = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(pointer.value))
    return flat
