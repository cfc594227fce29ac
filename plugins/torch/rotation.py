"""Randomised Hadamard rotation: gradients are spread over blocks before they are sent, and gathered again afterwards.

A lost segment then takes a little of every element of its blocks, not all of a few hundred elements: of a layer's row,
for example. Sums and means of rotated tensors are the rotated sums and means. Only additions and multiplications in a
fixed order, so that every rank gets the same bits from the same result, on any CPU.
"""

from __future__ import annotations

import math

import torch

# 16 KiB of float32: eleven segments of an Ethernet.
BLOCK = 4_096
TYPES = (torch.float32, torch.float64)


def _signs(seed: int, like: torch.Tensor) -> torch.Tensor:
    """The signs of a block, the same for all blocks: random, so that no usual pattern of a gradient is one of the
    transform's rows."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 2, (BLOCK,), generator=generator).to(like.dtype) * 2 - 1


def _blocks(flat: torch.Tensor) -> list[torch.Tensor]:
    """Views of rows of a power of two: the whole blocks, then ever shorter ones for the rest."""
    whole = flat.numel() // BLOCK * BLOCK
    parts = [flat[:whole].view(-1, BLOCK)] if whole else []
    rest, length = flat[whole:], BLOCK // 2
    while rest.numel():
        if rest.numel() >= length:
            parts.append(rest[:length].view(1, length))
            rest = rest[length:]
        length //= 2
    return parts


def _transform(rows: torch.Tensor) -> None:
    """The orthonormal Walsh-Hadamard transform of each row, in place; it is its own inverse."""
    count, length = rows.shape
    half = 1
    while half < length:
        pairs = rows.view(count, length // (2 * half), 2, half)
        first, second = pairs[:, :, 0], pairs[:, :, 1]
        difference = first - second
        first += second
        second.copy_(difference)
        half *= 2
    rows *= 1 / math.sqrt(length)


def rotate(flat: torch.Tensor, seed: int) -> None:
    """Rotate a contiguous float32 or float64 tensor of one dimension in place.

    >>> gradient = torch.zeros(4_096)
    >>> gradient[7] = 64.0
    >>> rotate(gradient, seed=1)
    >>> sorted(set(gradient.tolist()))  # one element became all of the block
    [-1.0, 1.0]
    >>> restore(gradient, seed=1)
    >>> gradient[7].item(), gradient.abs().sum().item()
    (64.0, 64.0)
    """
    signs = _signs(seed, flat)
    for rows in _blocks(flat):
        rows *= signs[: rows.shape[1]]
        _transform(rows)


def restore(flat: torch.Tensor, seed: int) -> None:
    """Undo ``rotate`` with the same seed, to within rounding."""
    signs = _signs(seed, flat)
    for rows in _blocks(flat):
        _transform(rows)
        rows *= signs[: rows.shape[1]]
