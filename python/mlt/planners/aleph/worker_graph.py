"""Pairs of workers that may aggregate for each other: the graph G of ALEPH's section 4.1.

Two forms: explicit neighbours (compressed sparse rows), or groups of workers that all reach each other (one rack, one
pod, all). Groups never list their edges and so scale to 10,000 workers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from mlt.planners.cluster import Cluster, Job

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Reach = Literal["rack", "module", "cluster"]


@dataclass(frozen=True, eq=False)
class WorkerGraph:
    """An undirected graph over workers 0..n-1, without loops (N(w) of the paper adds w itself).

    Exactly one form is present: ``indptr`` and ``indices`` are the neighbour lists; ``group`` gives each worker's
    group, whose workers are all neighbours. ``nearness`` has one row per level of locality, nearest first (rack, then
    module); workers with equal entries in a row are near on that level.
    """

    size: int
    indptr: Ints | None = None
    indices: Ints | None = None
    group: Ints | None = None
    nearness: tuple[Ints, ...] = ()

    def __post_init__(self) -> None:
        if (self.group is None) == (self.indptr is None or self.indices is None):
            raise ValueError("a worker graph has either neighbour lists or groups; expected exactly one of them")

    def _lists(self) -> tuple[Ints, Ints]:
        if self.indptr is None or self.indices is None:
            raise ValueError("a grouped graph has no neighbour lists")
        return self.indptr, self.indices

    def neighbours(self, worker: int) -> Ints:
        """Workers one hop from ``worker``, without itself, ascending."""
        if self.group is not None:
            same: Ints = np.flatnonzero(self.group == self.group[worker]).astype(np.int64)
            others: Ints = same[same != worker]
            return others
        indptr, indices = self._lists()
        near: Ints = indices[indptr[worker] : indptr[worker + 1]]
        return near

    def neighbour_sum(self, values: Floats) -> Floats:
        """For each worker, the sum of ``values`` over itself and its neighbours."""
        if self.group is not None:
            totals: Floats = np.bincount(self.group, weights=values).astype(np.float64)[self.group]
            return totals
        indptr, indices = self._lists()
        running = np.concatenate([[0.0], np.cumsum(values[indices])])
        sums: Floats = values + running[indptr[1:]] - running[indptr[:-1]]
        return sums

    def neighbour_count(self, chosen: Bools) -> Ints:
        """For each worker, the number of chosen neighbours, without itself."""
        if self.group is not None:
            others: Ints = np.bincount(self.group, weights=chosen).astype(np.int64)[self.group] - chosen
            return others
        indptr, indices = self._lists()
        running = np.concatenate([[0], np.cumsum(chosen[indices], dtype=np.int64)])
        counts: Ints = running[indptr[1:]] - running[indptr[:-1]]
        return counts

    def neighbour_max(self, values: Ints) -> Ints:
        """For each worker, the maximum of ``values`` over itself and its neighbours."""
        if self.group is not None:
            top = np.full(int(self.group.max()) + 1, np.iinfo(np.int64).min)
            np.maximum.at(top, self.group, values)
            maxima: Ints = top[self.group]
            return maxima
        indptr, indices = self._lists()
        # reduceat takes one element for an empty slice, so workers without neighbours are left out
        out: Ints = values.copy()
        connected = np.flatnonzero(np.diff(indptr))
        if len(connected):
            out[connected] = np.maximum(out[connected], np.maximum.reduceat(values[indices], indptr[connected]))
        return out


def complete_graph(size: int, *, nearness: Sequence[Sequence[int] | Ints] = ()) -> WorkerGraph:
    """All workers reach each other."""
    return grouped_graph(np.zeros(size, dtype=np.int64), nearness=nearness)


def grouped_graph(group: Sequence[int] | Ints, *, nearness: Sequence[Sequence[int] | Ints] = ()) -> WorkerGraph:
    """Workers with equal entries in ``group`` reach each other."""
    _, labels = np.unique(np.asarray(group), return_inverse=True)
    levels = tuple(np.asarray(level, dtype=np.int64) for level in nearness)
    return WorkerGraph(size=len(labels), group=labels.astype(np.int64), nearness=levels)


def graph_from_edges(size: int, edges: Iterable[tuple[int, int]]) -> WorkerGraph:
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
    return WorkerGraph(size=size, indptr=indptr, indices=both[:, 1].copy())


def random_graph(size: int, *, edge_probability: float, rng: np.random.Generator) -> WorkerGraph:
    """Erdos-Renyi: each pair is joined with the given probability."""
    upper = np.triu(rng.random((size, size)) < edge_probability, k=1)
    return graph_from_edges(size, zip(*map(np.ndarray.tolist, np.nonzero(upper)), strict=True))


def rack_of(cluster: Cluster, host: str) -> str:
    """The packet switch of a host; the host itself if it has none (a rack of its own)."""
    for link in cluster.links_of[host]:
        switch = cluster.switch_by_name.get(cluster.peer(link, host))
        if switch is not None and switch.kind == "packet":
            return switch.name
    return host


def worker_graph(cluster: Cluster, job: Job, *, reach: Reach) -> WorkerGraph:
    """The graph of a job's workers: those under one switch (``rack``), in one module, or in the cluster are neighbours.

    The paper leaves the edges open ("these two workers are able to communicate with each other"). Its figure 13 needs
    clusters that cross racks; its figure 14 needs members in their aggregator's rack wherever possible.
    """
    racks = [rack_of(cluster, name) for name in job.workers]

    def module_of(host: str, rack: str) -> str:
        module = cluster.host_by_name[host].module
        if module is None and rack in cluster.switch_by_name:
            module = cluster.switch_by_name[rack].module
        return f"rack {rack}" if module is None else f"module {module}"

    modules = [module_of(name, rack) for name, rack in zip(job.workers, racks, strict=True)]
    levels = [np.unique(labels, return_inverse=True)[1].astype(np.int64) for labels in (racks, modules)]
    group = {"rack": levels[0], "module": levels[1], "cluster": np.zeros(len(racks), dtype=np.int64)}[reach]
    return grouped_graph(group, nearness=levels)
