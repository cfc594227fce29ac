"""Arithmetic on bytes with a named element type."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mlt._named import elements
from mlt._named.elements import BFLOAT16, Bytes


def raw(values: Any, dtype: str) -> Bytes:
    return np.array(values, dtype).view(np.uint8)


def bfloat16(values: list[float]) -> Bytes:
    """Values that bfloat16 represents."""
    return (np.array(values, np.float32).view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64"])
def test_divide__truncates_toward_zero(dtype: str) -> None:
    data = raw([7, -7, 6, -1, 0], dtype)
    elements.divide(data, dtype, 3)
    assert data.view(dtype).tolist() == [2, -2, 2, 0, 0]


def test_divide__is_exact_where_float64_is_not() -> None:
    data = raw([2**62 + 1, -(2**63)], "int64")
    elements.divide(data, "int64", 1)
    assert data.view(np.int64).tolist() == [2**62 + 1, -(2**63)]


@pytest.mark.parametrize(
    ("dtype", "values", "factor", "expected"),
    [
        ("float32", [1.0, -2.0], 0.5, [0.5, -1.0]),
        ("float64", [1.0, -2.0], 0.5, [0.5, -1.0]),
        ("float16", [1.0, -2.0], 0.5, [0.5, -1.0]),
        ("int32", [5, -5, 3], 0.5, [2, -2, 1]),
        ("uint8", [5, 200], 0.5, [2, 100]),
    ],
)
def test_scale__in_place(dtype: str, values: list[float], factor: float, expected: list[float]) -> None:
    data = raw(values, dtype)
    elements.scale(data, dtype, factor)
    assert data.view(dtype).tolist() == expected


def test_scale__rounds_bfloat16_to_nearest_even() -> None:
    # 1 + 2^-7 is the next value after 1; half of the step above 1.5 is a tie, which goes to the even neighbour.
    data = bfloat16([1.0, 3.0, float("nan")])
    elements.scale(data, BFLOAT16, 1.0 + 2.0**-8)
    assert data[:4].tolist() == [*bfloat16([1.0]), *bfloat16([3.0 + 2.0**-6])]
    assert np.isnan((data.view(np.uint16).astype(np.uint32) << 16).view(np.float32)[2])


@pytest.mark.parametrize("dtype", ["float32", "float16", "int16", "uint8", "bool"])
@pytest.mark.parametrize("op", ["sum", "min", "max"])
def test_neutral__leaves_a_reduction_unchanged(dtype: str, op: str) -> None:
    data = np.full(2 * elements.item_bytes(dtype), 77, np.uint8)
    elements.neutral(data, dtype, op)
    own = np.array([1, 0], dtype)
    combine = {"sum": np.add, "min": np.minimum, "max": np.maximum}[op]
    assert combine(own, data.view(dtype)).tolist() == own.tolist()


def test_neutral__of_a_product_is_one() -> None:
    for dtype, one in (("int32", raw([1], "int32")), (BFLOAT16, bfloat16([1.0]))):
        data = np.zeros(one.size, np.uint8)
        elements.neutral(data, dtype, "product")
        assert data.tolist() == one.tolist()


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ([1.0, 2.0], [1.0, 2.0], [1.0, 2.0]),  # parallel: the mean
        ([1.0, 0.0], [0.0, 3.0], [1.0, 3.0]),  # orthogonal: the sum
        ([0.0, 0.0], [0.0, 3.0], [0.0, 3.0]),
    ],
)
def test_adasum__between_mean_and_sum(one: list[float], other: list[float], expected: list[float]) -> None:
    result = elements.adasum([raw(one, "float32"), raw(other, "float32")], "float32")
    assert result.view(np.float32).tolist() == expected


def test_adasum__adds_in_pairs() -> None:
    parts = [raw([float(i == j) for j in range(4)], "float64") for i in range(4)]
    assert elements.adasum(parts, "float64").view(np.float64).tolist() == [1.0] * 4
