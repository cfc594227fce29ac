"""Assigns members to the nearest aggregator; the aggregators and their numbers of members stay.

ALEPH's figure 14 assumes members one switch away from their aggregator; algorithm 1 does not describe how. Sizes stay,
so the number of streams, every capacity and every rate stay; only paths become shorter.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from mlt.planners.aleph.clustering import Clustering
from mlt.planners.aleph.worker_graph import Ints, WorkerGraph


def localise(clustering: Clustering, graph: WorkerGraph) -> Clustering:
    """Assign members again, level by level of ``graph.nearness``, nearest first.

    Inside one place (a rack, then a module, then the whole group) members fill the aggregators' free slots in order, so
    a member leaves a place only if it has no free slot left.
    """
    if not graph.nearness:
        return clustering
    head, seats = np.arange(graph.size), clustering.member_counts.copy()
    waiting = clustering.head != head
    for level in (*graph.nearness, np.zeros(graph.size, dtype=np.int64)):
        _, place = np.unique(np.stack([graph.group, level]), axis=1, return_inverse=True)
        _seat(head, seats, waiting, place.reshape(-1))
    return replace(clustering, head=head)


def _seat(head: Ints, seats: Ints, waiting: np.ndarray[tuple[int], np.dtype[np.bool_]], place: Ints) -> None:
    """Assign as many waiting workers as their place has slots; modifies the arrays."""
    members = np.flatnonzero(waiting)
    open_seats = np.repeat(np.arange(len(head)), seats)
    members = members[np.argsort(place[members], kind="stable")]
    open_seats = open_seats[np.argsort(place[open_seats], kind="stable")]
    # Rank of each member and slot within its place; equal ranks are matched.
    member_keys = _ranked(place[members], len(head))
    seat_keys = _ranked(place[open_seats], len(head))
    _, member_at, seat_at = np.intersect1d(member_keys, seat_keys, assume_unique=True, return_indices=True)
    head[members[member_at]] = open_seats[seat_at]
    waiting[members[member_at]] = False
    np.subtract.at(seats, open_seats[seat_at], 1)


def _ranked(places: Ints, size: int) -> Ints:
    """``place * (size + 1) + rank within the place`` for places in ascending order."""
    starts = np.searchsorted(places, places, side="left")
    keys: Ints = places * (size + 1) + np.arange(len(places)) - starts
    return keys
