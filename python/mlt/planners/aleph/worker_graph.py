"""Pairs of workers that may aggregate for each other: the graph G of ALEPH's section 4.1.

Here they form groups of workers that all reach each other (one rack, one pod, all), whose edges are never listed, so
that a graph scales to 10,000 workers. ``studies/aleph/listed_graph.py`` has graphs of any edges.
"""

from __future__ import annotations

from collections.abc import Sequence
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

    Workers with equal entries in ``group`` are neighbours. ``nearness`` has one row per level of locality, nearest
    first (rack, then module); workers with equal entries in a row are near on that level.
    """

    group: Ints
    nearness: tuple[Ints, ...] = ()

    @property
    def size(self) -> int:
        return len(self.group)

    def neighbours(self, worker: int) -> Ints:
        """Workers one hop from ``worker``, without itself, ascending."""
        same: Ints = np.flatnonzero(self.group == self.group[worker]).astype(np.int64)
        others: Ints = same[same != worker]
        return others

    def neighbour_sum(self, values: Floats) -> Floats:
        """For each worker, the sum of ``values`` over itself and its neighbours."""
        totals: Floats = np.bincount(self.group, weights=values).astype(np.float64)[self.group]
        return totals

    def neighbour_count(self, chosen: Bools) -> Ints:
        """For each worker, the number of chosen neighbours, without itself."""
        others: Ints = np.bincount(self.group, weights=chosen).astype(np.int64)[self.group] - chosen
        return others

    def neighbour_max(self, values: Ints) -> Ints:
        """For each worker, the maximum of ``values`` over itself and its neighbours."""
        top = np.full(int(self.group.max()) + 1, np.iinfo(np.int64).min)
        np.maximum.at(top, self.group, values)
        maxima: Ints = top[self.group]
        return maxima


def grouped_graph(group: Sequence[int] | Ints, *, nearness: Sequence[Sequence[int] | Ints] = ()) -> WorkerGraph:
    """Workers with equal entries in ``group`` reach each other."""
    _, labels = np.unique(np.asarray(group), return_inverse=True)
    levels = tuple(np.asarray(level, dtype=np.int64) for level in nearness)
    return WorkerGraph(labels.astype(np.int64), levels)


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
