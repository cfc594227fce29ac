"""Other ways to place partitions than by ranges of hash values, and how far hashing is from the planned loads.

``rendezvous_service`` keeps every part whose service is still there when services come and go, at the cost of one hash
per part and service; ``place_evenly`` needs all names beforehand and comes closest to the loads.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence

from mlt.planners.byteps.partition_hash import Partition, service_of, stable_hash
from mlt.planners.plan import Assignment


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
    """How much longer than planned the fullest service takes: the largest ratio of its load to its planned share."""
    total, whole = math.fsum(loads), math.fsum(service.load_bytes for service in assignment.services)
    ratios = [
        load / total * whole / service.load_bytes if service.load_bytes > 0 else math.inf
        for load, service in zip(loads, assignment.services, strict=True)
        if load > 0
    ]
    return max(ratios, default=0.0)
