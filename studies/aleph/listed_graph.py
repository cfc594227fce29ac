"""Worker graphs of any edges, as compressed sparse rows: what the paper's theorems and M-WCHA's ratio are about.

``group`` gives every worker a group of its own: clustering by groups (``fastest``, ``localise``, balanced clusters) is
not for these graphs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from mlt.planners.aleph.worker_graph import Bools, Floats, Ints, WorkerGraph, grouped_graph


def _none() -> Ints:
    return np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class ListedGraph(WorkerGraph):
    """``indices[indptr[w] : indptr[w + 1]]`` are the neighbours of worker w, ascending."""

    indptr: Ints = field(default_factory=_none)
    indices: Ints = field(default_factory=_none)

    def neighbours(self, worker: int) -> Ints:
        near: Ints = self.indices[self.indptr[worker] : self.indptr[worker + 1]]
        return near

    def neighbour_sum(self, values: Floats) -> Floats:
        running = np.concatenate([[0.0], np.cumsum(values[self.indices])])
        sums: Floats = values + running[self.indptr[1:]] - running[self.indptr[:-1]]
        return sums

    def neighbour_count(self, chosen: Bools) -> Ints:
        running = np.concatenate([[0], np.cumsum(chosen[self.indices], dtype=np.int64)])
        counts: Ints = running[self.indptr[1:]] - running[self.indptr[:-1]]
        return counts

    def neighbour_max(self, values: Ints) -> Ints:
        # reduceat takes one element for an empty slice, so workers without neighbours are left out
        out: Ints = values.copy()
        connected = np.flatnonzero(np.diff(self.indptr))
        if len(connected):
            out[connected] = np.maximum(
                out[connected], np.maximum.reduceat(values[self.indices], self.indptr[connected])
            )
        return out


def graph_from_edges(size: int, edges: Iterable[tuple[int, int]]) -> ListedGraph:
    """Explicit undirected edges; loops and repeats are dropped.

    Raises:
        ValueError: an end is outside 0..size-1.
    """
    pairs = np.asarray(list(edges), dtype=np.int64).reshape(-1, 2)
    if len(pairs) and (pairs.min() < 0 or pairs.max() >= size):
        raise ValueError(f"an edge leads outside the {size} workers; expected ends from 0 to {size - 1}")
    both = np.unique(np.concatenate([pairs, pairs[:, ::-1]]), axis=0)
    both = both[both[:, 0] != both[:, 1]]
    indptr = np.concatenate([[0], np.cumsum(np.bincount(both[:, 0], minlength=size))]).astype(np.int64)
    return ListedGraph(np.arange(size), indptr=indptr, indices=both[:, 1].copy())


def random_graph(size: int, *, edge_probability: float, rng: np.random.Generator) -> ListedGraph:
    """Erdos-Renyi: each pair is joined with the given probability."""
    upper = np.triu(rng.random((size, size)) < edge_probability, k=1)
    return graph_from_edges(size, zip(*map(np.ndarray.tolist, np.nonzero(upper)), strict=True))


def complete_graph(size: int, *, nearness: Sequence[Sequence[int] | Ints] = ()) -> WorkerGraph:
    """All workers reach each other."""
    return grouped_graph(np.zeros(size, dtype=np.int64), nearness=nearness)
