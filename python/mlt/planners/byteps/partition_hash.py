"""Ranges of hash values that give each summation service its share of the partitions, without communication.

Paper: BytePS, section 4.1. Tensors are cut into parts of up to 4 MB, parts are hashed into [0, n^2 + kn - 2k), and
ranges of hash values map to services in proportion to their loads. A hash depends on names and sizes only, so all
workers agree. If the set of services changes, contiguous ranges shift and most parts move. ``studies.byteps_placement``
has the hash itself, and measures how evenly it divides.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

DEFAULT_PARTITION_BYTES = 4 * 2**20
_FALLBACK_SPACE = 2**20  # ranges are then within 1e-6 of the loads


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
