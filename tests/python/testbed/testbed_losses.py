"""The packets that link_loss.bpf.c drops: its arithmetic, written again."""

from __future__ import annotations

_MASK = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15


def _mix(z: int) -> int:
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def is_lost(loss: float, seed: int, number: int) -> bool:
    """Whether packet ``number`` (from 0) of a direction is lost."""
    return _mix((seed + (number + 1) * _GOLDEN) & _MASK) >> 32 < round(loss * 2**32)


def expected_losses(loss: float, seed: int, packets: int) -> int:
    """Number of losses among the first ``packets``."""
    return sum(is_lost(loss, seed, number) for number in range(packets))
