"""Arithmetic on flat buffers of bytes whose element type is given by name."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]

_NUMPY: Final[dict[str, type[np.generic]]] = {
    "bool": np.bool_,
    "uint8": np.uint8,
    "int8": np.int8,
    "int16": np.int16,
    "int32": np.int32,
    "int64": np.int64,
    "float16": np.float16,
    "float32": np.float32,
    "float64": np.float64,
}
BFLOAT16: Final = "bfloat16"  # numpy has none
DTYPES: Final = (*_NUMPY, BFLOAT16)
_FLOATS: Final = frozenset({"float16", BFLOAT16, "float32", "float64"})


def item_bytes(dtype: str) -> int:
    """Size of an element."""
    return 2 if dtype == BFLOAT16 else np.dtype(_NUMPY[dtype]).itemsize


def is_float(dtype: str) -> bool:
    """Whether the type is floating point."""
    return dtype in _FLOATS


def elements(shape: tuple[int, ...]) -> int:
    """Number of elements of a shape."""
    count = 1
    for length in shape:
        count *= length
    return count


def scale(data: Bytes, dtype: str, factor: float) -> None:
    """Multiply in place. Integers are computed in float64 and truncated toward zero; half precision in float32."""
    if factor == 1.0 or not data.size:
        return
    if dtype in ("float32", "float64"):
        typed: npt.NDArray[Any] = data.view(_NUMPY[dtype])
        typed *= typed.dtype.type(factor)
    elif dtype in _FLOATS:
        _store(data, dtype, _load(data, dtype, np.float32) * np.float32(factor))
    else:
        typed = data.view(_NUMPY[dtype])
        with np.errstate(invalid="ignore"):  # out of range: as in C, whatever the processor gives
            typed[...] = np.trunc(typed.astype(np.float64) * factor).astype(typed.dtype)


def add(data: Bytes, addend: Bytes, dtype: str) -> None:
    """Add in place; half precision is computed in float32 and rounded."""
    if dtype in _FLOATS and item_bytes(dtype) == 2:
        _store(data, dtype, _load(data, dtype, np.float32) + _load(addend, dtype, np.float32))
    else:
        typed: npt.NDArray[Any] = data.view(_NUMPY[dtype])
        typed += addend.view(_NUMPY[dtype])


def divide(data: Bytes, dtype: str, divisor: int) -> None:
    """Divide integers in place, exactly, truncating toward zero."""
    typed: npt.NDArray[Any] = data.view(_NUMPY[dtype])
    typed -= np.fmod(typed, typed.dtype.type(divisor))
    typed //= typed.dtype.type(divisor)


def neutral(data: Bytes, dtype: str, op: str) -> None:
    """Fill with what leaves a reduction unchanged: 0 for sums, 1 for products, the extremes for minimum and maximum."""
    if op in ("sum", "average", "adasum"):
        data[...] = 0
    elif op == "product":
        _store(data, dtype, np.ones(data.size // item_bytes(dtype), np.float32))
    elif is_float(dtype):
        value = np.inf if op == "min" else -np.inf
        _store(data, dtype, np.full(data.size // item_bytes(dtype), value, np.float32))
    elif dtype == "bool":
        data[...] = op == "min"
    else:
        info: Any = np.iinfo(dtype)
        data.view(_NUMPY[dtype])[...] = info.max if op == "min" else info.min


def adasum(parts: list[Bytes], dtype: str) -> Bytes:
    """Adaptive sum of the ranks' tensors, in pairs of neighbours; the number of parts is a power of two.

    Of two parallel tensors it is the mean, of two orthogonal ones the sum (Maleki et al., MLSys 2021).
    """
    terms = [_load(part, dtype, np.float64) for part in parts]
    while len(terms) > 1:
        terms = [_adaptive_sum(one, other) for one, other in zip(terms[::2], terms[1::2], strict=True)]
    result = np.empty_like(parts[0])
    _store(result, dtype, terms[0])
    return result


def _adaptive_sum(one: npt.NDArray[Any], other: npt.NDArray[Any]) -> npt.NDArray[Any]:
    product = float(one @ other)
    of_one, of_other = float(one @ one), float(other @ other)
    scale_one = 1.0 - product / (2.0 * of_one) if of_one else 1.0
    scale_other = 1.0 - product / (2.0 * of_other) if of_other else 1.0
    return scale_one * one + scale_other * other


def _load(data: Bytes, dtype: str, wide: Any) -> npt.NDArray[Any]:
    if dtype == BFLOAT16:
        return (data.view(np.uint16).astype(np.uint32) << 16).view(np.float32).astype(wide)
    return data.view(_NUMPY[dtype]).astype(wide)


def _store(data: Bytes, dtype: str, values: npt.NDArray[Any]) -> None:
    if dtype != BFLOAT16:
        data.view(_NUMPY[dtype])[...] = values.astype(_NUMPY[dtype])
        return
    bits = values.astype(np.float32).view(np.uint32)
    # Round to nearest, ties to even; a NaN stays one.
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)) >> 16
    is_nan = np.isnan(values)
    data.view(np.uint16)[...] = np.where(is_nan, np.uint32(0x7FC0), rounded).astype(np.uint16)
