"""The summation service of a tensor's partition: the same on every worker, without communication.

Paper: BytePS, section 4.1. Tensors are cut into parts of up to 4 MB, parts are hashed into [0, n^2 + kn - 2k), and
ranges of hash values map to services in proportion to their loads. A hash depends on names and sizes only, so all
workers agree. If the set of services changes, contiguous ranges shift and most parts move.

The hash is FNV-1a (64 bits) followed by the splitmix64 finaliser: ten lines in any language.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from mlt.planners.plan import Assignment

DEFAULT_PARTITION_BYTES = 4 * 2**20
_MASK = 2**64 - 1
_FALLBACK_SPACE = 2**20  # ranges are then within 1e-6 of the loads


@dataclass(frozen=True, kw_only=True)
class Partition:
    """A slice of one tensor."""

    tensor: str
    index: int
    size: int


def partitions(tensors: Mapping[str, int], *, partition_bytes: int = DEFAULT_PARTITION_BYTES) -> Iterator[Partition]:
    """Cut tensors (name -> bytes) into parts of at most ``partition_bytes``, in order.

    Raises:
        ValueError: ``partition_bytes`` is not above zero.
    """
    if partition_bytes <= 0:
        raise ValueError(f"partition_bytes is {partition_bytes}; expected more than zero")
    for tensor, total in tensors.items():
        for index, offset in enumerate(range(0, total, partition_bytes)):
            yield Partition(tensor=tensor, index=index, size=min(partition_bytes, total - offset))


def stable_hash(text: str) -> int:
    """64-bit hash of ``text``, the same on every host and in every run."""
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = ((value ^ byte) * 0x100000001B3) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def closed_form_hash_space(*, workers: int, servers: int) -> int | None:
    """n^2 + kn - 2k, for which equations 1 and 2 give integers; None outside the closed form."""
    if workers < 2 or servers > workers:
        return None
    return workers * workers + servers * workers - 2 * servers


def hash_ranges(loads: Sequence[float], *, hash_space: int | None = None) -> tuple[int, list[tuple[int, int]]]:
    """Contiguous ranges [begin, end) of [0, hash_space) in proportion to ``loads``.

    Ends are the rounded running sums: no range is off by more than one value, and the ranges cover the space exactly.
    """
    space = hash_space or max(_FALLBACK_SPACE, 1000 * len(loads))
    total, running, begin = math.fsum(loads), 0.0, 0
    ranges = []
    for position, load in enumerate(loads):
        running += load
        end = space if position == len(loads) - 1 else max(begin, min(space, round(running / total * space)))
        ranges.append((begin, end))
        begin = end
    return space, ranges


def service_of(assignment: Assignment, partition: Partition) -> int:
    """Index into ``assignment.services`` of the service that sums ``partition``."""
    value = stable_hash(f"{partition.tensor}:{partition.index}") % assignment.hash_space
    return bisect.bisect_right([service.hash_end for service in assignment.services], value)
