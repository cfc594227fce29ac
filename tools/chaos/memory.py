"""Buffers whose every byte identifies their operation, guards around them, and their digests.

The contents are those of the simulator's oracle (src/sim/oracle_contents.h), the digests those of its checker
(tests/sim/chaos/digest.h).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

GUARD = 0xC7
GUARD_BYTES = 64
MASK = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15

Bytes = npt.NDArray[np.uint8]
Words = npt.NDArray[np.uint64]


def first_word(number: int, epoch: int) -> int:
    """First output of a SplitMix64 seeded with this operation and epoch (src/base/prng.h)."""
    z = ((number << 20 ^ epoch << 60) + GOLDEN) & MASK
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & MASK
    z = (z ^ z >> 27) * 0x94D049BB133111EB & MASK
    return z ^ z >> 31


def contents(number: int, epoch: int, size: int) -> Bytes:
    """Contents of an operation's buffer: the sent data, or a receive's contents before the transfer."""
    words = np.arange((size + 7) // 8, dtype=np.uint64)
    words *= np.uint64(GOLDEN)
    words += np.uint64(first_word(number, epoch))
    words |= np.uint64(0x0101010101010101)
    return words.view(np.uint8)[:size]


def digest(data: Bytes, at: int = 0) -> int:
    """Digest of bytes at offset ``at`` of their buffer, a multiple of 8."""
    whole = data.size // 8 * 8
    total = 0
    if whole:
        places = np.arange(at // 8, at // 8 + whole // 8, dtype=np.uint64)
        places *= np.uint64(2)
        places += np.uint64(1)
        total = int(np.dot(data[:whole].view(np.uint64), places)) if data.ctypes.data % 8 == 0 else _slow(data, places)
    if whole < data.size:
        total += int.from_bytes(data[whole:].tobytes(), "little") * (2 * ((at + whole) // 8) + 1)
    return total & MASK


def _slow(data: Bytes, places: Words) -> int:
    return int(np.dot(np.frombuffer(data[: places.size * 8].tobytes(), np.uint64), places))


class Block:
    """A buffer between two guards."""

    def __init__(self, size: int) -> None:
        room = np.full(size + 2 * GUARD_BYTES + 8, GUARD, np.uint8)
        # All element types must be aligned.
        begin = GUARD_BYTES + -(room.ctypes.data + GUARD_BYTES) % 8
        self._front = room[begin - GUARD_BYTES : begin]
        self._back = room[begin + size : begin + size + GUARD_BYTES]
        self.data: Bytes = room[begin : begin + size]

    def guards(self) -> int:
        return digest(np.concatenate((self._front, self._back)))

    def view(self, dtype: str) -> Any:
        return self.data.view(dtype)


def digests(data: Bytes, missing: list[tuple[int, int]]) -> tuple[int, int]:
    """(digest of the received ranges, of the missing ranges): ``missing`` are offsets and lengths."""
    gaps = sum(digest(data[offset : offset + length], offset) for offset, length in missing)
    return (digest(data) - gaps) & MASK, gaps & MASK


def summands(size: int, rank: int, sequence: int) -> npt.NDArray[np.float32]:
    """A rank's tensor before an all-reduce: small integers, whose sums are exact in any order."""
    places = np.arange(size // 4, dtype=np.uint64)
    return ((places * np.uint64(37) + np.uint64(rank * 11 + sequence * 101)) % np.uint64(251)).astype(np.float32)
