"""The randomised Hadamard rotation: orthonormal, undone to within rounding, and the same bits everywhere."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from mlt.torch.rotation import BLOCK, TYPES, restore, rotate

SIZES = [0, 1, 2, 3, 1_000, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 777]


def values(count: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(count, generator=torch.Generator().manual_seed(count), dtype=dtype)


def rotated(tensor: torch.Tensor, seed: int) -> torch.Tensor:
    result = tensor.clone()
    rotate(result, seed)
    return result


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("count", SIZES)
def test_restore__undoes_a_rotation_of_any_size(count: int, dtype: torch.dtype) -> None:
    before = values(count, dtype)
    tensor = rotated(before, 5)
    torch.testing.assert_close(tensor.norm(), before.norm())
    if count >= BLOCK:
        assert not torch.allclose(tensor, before)
    restore(tensor, 5)
    torch.testing.assert_close(tensor, before)


def test_rotate__is_the_hadamard_matrix_of_each_block_and_random_signs() -> None:
    matrix = np.array([[1.0]])
    while len(matrix) < BLOCK:
        matrix = np.kron([[1, 1], [1, -1]], matrix)
    unit = torch.eye(BLOCK, dtype=torch.float64)[3].clone()
    rotate(unit, 9)
    column = unit.numpy() * np.sqrt(BLOCK)
    assert np.array_equal(column, matrix[3]) or np.array_equal(column, -matrix[3])
    seeds = [rotated(torch.ones(BLOCK), seed) for seed in range(4)]
    assert not any(torch.equal(seeds[0], other) for other in seeds[1:])
    assert torch.equal(seeds[0], rotated(torch.ones(BLOCK), 0))


def test_rotate__sums_are_the_rotated_sums() -> None:
    terms = [values(10_000 + index)[:10_000] for index in range(3)]
    total = rotated(terms[0], 1) + rotated(terms[1], 1) + rotated(terms[2], 1)
    restore(total, 1)
    torch.testing.assert_close(total, terms[0] + terms[1] + terms[2], atol=1e-5, rtol=1e-5)


def test_rotate__a_lost_segment_is_a_little_of_every_element_of_its_block() -> None:
    gradient = torch.zeros(BLOCK)
    gradient[100:108] = 100.0  # all in one segment
    tensor = rotated(gradient, 3)
    tensor[:358] = 0  # a segment of an Ethernet
    restore(tensor, 3)
    assert (tensor[100:108] > 50).all()
    assert (tensor - gradient).norm() / gradient.norm() < 0.5
