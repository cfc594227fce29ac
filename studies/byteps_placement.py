"""Partitions of tensors placed by ranges of hash values, other ways to place them, and how far each is from the plan.

``service_of`` applies the ranges of a plan (BytePS, section 4.1). The hash is FNV-1a (64 bits) followed by the
splitmix64 finaliser: ten lines in any language.
``rendezvous_service`` keeps every part whose service is still there when services come and go, at the cost of one hash
per part and service; ``place_evenly`` needs all names beforehand and comes closest to the loads.
"""

from __future__ import annotations

import bisect
import heapq
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from mlt.planners.byteps.partition_hash import DEFAULT_PARTITION_BYTES
from mlt.planners.plan import Assignment

_MASK = 2**64 - 1


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


def service_of(assignment: Assignment, partition: Partition) -> int:
    """Index into ``assignment.services`` of the service that sums ``partition``."""
    value = stable_hash(f"{partition.tensor}:{partition.index}") % assignment.hash_space
    return bisect.bisect_right([service.hash_end for service in assignment.services], value)


def rendezvous_service(loads: Mapping[str, float], partition: Partition) -> str:
    """The service that sums ``partition`` by weighted rendezvous hashing: chance proportional to its load.

    Removing a service moves only its own parts; adding one only takes parts for itself.

    Raises:
        ValueError: no service has a load above zero.
    """
    best, best_score = None, -math.inf
    for name, load in sorted(loads.items()):
        if load <= 0:
            continue
        unit = (stable_hash(f"{name}|{partition.tensor}:{partition.index}") + 0.5) / 2**64
        score = load / -math.log(unit) if unit < 1 else math.inf
        if score > best_score:
            best, best_score = name, score
    if best is None:
        raise ValueError("no service has a load above zero")
    return best


def achieved_loads(assignment: Assignment, parts: Iterable[Partition]) -> list[int]:
    """Bytes each service really gets; hashing spreads few parts less evenly than the model assumes."""
    loads = [0] * len(assignment.services)
    for part in parts:
        loads[service_of(assignment, part)] += part.size
    return loads


def place_evenly(assignment: Assignment, parts: Iterable[Partition]) -> dict[tuple[str, int], int]:
    """Service of each part, (tensor, index) -> position in ``assignment.services``, with loads as planned.

    Hashing spreads few parts unevenly: a model of a hundred parts over fifty services leaves one of them with twice its
    share. Where every worker knows all tensors beforehand, this rule needs no message either: parts from the largest to
    the smallest (then by name and index), each to the service that it fills least beyond its planned load.

    Raises:
        ValueError: no service has a load above zero.
    """
    planned = [service.load_bytes for service in assignment.services]
    if not any(load > 0 for load in planned):
        raise ValueError("no service has a load above zero")
    ordered = sorted(parts, key=lambda part: (-part.size, part.tensor, part.index))
    held = [0.0] * len(planned)
    out: dict[tuple[str, int], int] = {}
    # Parts of one size fill services in the order of (held + size) / planned, so a heap per size serves all of them.
    for size, group in itertools.groupby(ordered, key=lambda part: part.size):
        heap = [((held[i] + size) / load, i) for i, load in enumerate(planned) if load > 0]
        heapq.heapify(heap)
        for part in group:
            _, best = heap[0]
            held[best] += size
            out[part.tensor, part.index] = best
            heapq.heapreplace(heap, ((held[best] + size) / planned[best], best))
    return out


def overload(assignment: Assignment, loads: Sequence[float]) -> float:
    """The fullest service's time relative to its planned one: the largest ratio of a load to its planned share."""
    total, whole = math.fsum(loads), math.fsum(service.load_bytes for service in assignment.services)
    ratios = [
        load / total * whole / service.load_bytes if service.load_bytes > 0 else math.inf
        for load, service in zip(loads, assignment.services, strict=True)
        if load > 0
    ]
    return max(ratios, default=0.0)
