"""Rates and times of gradient aggregation: parameter server, ring all-reduce and ALEPH's hierarchy.

Paper: ALEPH, sections 3.1 and 4.1. Every worker sends one stream at the rate r. An aggregator with g members receives g
streams and sends one stream up and one down to each member, all overlapped. So its bandwidth must carry (1 + g) r in
each direction, and its cores g r. The servers together receive one stream per aggregator and direct worker. Absent, as
in the paper: links between switches, which are assumed not to limit (``mlt.planners.aro`` models them).

Units: bits per second, bytes, cores, seconds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mlt._shared.counts import count_of
from mlt.planners.aleph.clustering import Clustering
from mlt.planners.aleph.clustering_greedy import greedy_clustering
from mlt.planners.aleph.worker_graph import Floats, Ints, WorkerGraph

_SLACK = 1e-9  # relative; 30 Gbit/s shared by three streams of 10 must not fail by rounding


@dataclass(frozen=True, eq=False, kw_only=True)
class Resources:
    """Bandwidths, cores and cost of aggregation on the hosts of one job.

    ``bandwidths`` and ``cores`` have one entry per worker, ``server_bandwidths`` one per server (at least one).
    ``cores_per_gbit``: cores that aggregate 1 Gbit/s of members' streams.
    """

    bandwidths: Floats
    cores: Floats
    server_bandwidths: Floats
    cores_per_gbit: float
    model_bytes: float

    def __post_init__(self) -> None:
        if not len(self.bandwidths) or not len(self.server_bandwidths) or len(self.cores) != len(self.bandwidths):
            raise ValueError("expected at least one worker and one server, and the cores of every worker")

    @property
    def slowest_worker(self) -> float:
        """b of the paper: the rate that every worker can send."""
        return float(self.bandwidths.min())

    @property
    def server_total(self) -> float:
        return float(self.server_bandwidths.sum())

    @property
    def shares(self) -> Floats:
        """Fraction of every aggregated gradient per server: its share of the servers' bandwidth (section 7)."""
        shares: Floats = self.server_bandwidths / self.server_bandwidths.sum()
        return shares


@dataclass(frozen=True, kw_only=True)
class Bottleneck:
    """The rate of every stream and the resource that limits it."""

    rate: float
    constraint: str
    worker: int | None = None


def capacities(resources: Resources, *, rate: float) -> Ints:
    """g of equation 1: number of other workers for which each worker can aggregate if all send at ``rate``."""
    network = np.floor(resources.bandwidths / rate * (1 + _SLACK)) - 1
    per_member = resources.cores_per_gbit * rate / 1e9
    compute = np.floor(resources.cores / per_member * (1 + _SLACK)) if per_member > 0 else np.full_like(network, np.inf)
    limit = np.minimum(np.minimum(network, compute), len(resources.bandwidths))
    whole: Ints = np.maximum(limit, 0).astype(np.int64)
    return whole


def bottleneck(clustering: Clustering, resources: Resources) -> Bottleneck:
    """The highest rate at which all workers can send under ``clustering``, and its bottleneck."""
    members = clustering.member_counts
    network = resources.bandwidths / (1 + members)
    per_bit = resources.cores_per_gbit / 1e9
    compute = np.full(len(members), np.inf)
    busy = (members > 0) & (per_bit > 0)
    compute[busy] = resources.cores[busy] / (members[busy] * per_bit)
    servers = resources.server_total / clustering.streams
    worker = int(np.argmin(np.minimum(network, compute)))
    options = [
        Bottleneck(
            rate=servers, constraint=f"the servers' bandwidth, shared by {count_of(clustering.streams, 'stream')}"
        ),
        Bottleneck(
            rate=float(network[worker]),
            constraint=f"the bandwidth of aggregator {{}}, shared by {1 + members[worker]} streams"
            if members[worker]
            else "the bandwidth of the slowest worker, {}",
            worker=worker,
        ),
        Bottleneck(rate=float(compute[worker]), constraint="the CPU of aggregator {}", worker=worker),
    ]
    return min(options, key=lambda option: option.rate)


def iteration_time(*, model_bytes: float, rate: float) -> float:
    """Push and pull overlap (section 3.1), so the model is sent once at ``rate``; infinite at rate 0."""
    return model_bytes * 8 / rate if rate > 0 else float("inf")


def hierarchical_time(clustering: Clustering, resources: Resources) -> float:
    """Communication time of one iteration under ``clustering``."""
    return iteration_time(model_bytes=resources.model_bytes, rate=bottleneck(clustering, resources).rate)


def direct_clustering(size: int) -> Clustering:
    """No aggregation: the plain parameter server."""
    return Clustering(head=np.arange(size, dtype=np.int64), method="direct")


def fewest_streams(graph: WorkerGraph, capacity: Ints) -> int:
    """Min number of streams to the servers over all clusterings.

    In each group the strongest aggregators are chosen until they and their members are the whole group.
    """
    order = np.lexsort([-capacity, graph.group])
    group, sizes = graph.group[order], np.bincount(graph.group)
    held = np.cumsum(capacity[order] + 1)
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    before = np.concatenate([[0], held])[starts][group]
    # A worker is an aggregator if the stronger ones of its group hold less than the whole group.
    held_by_stronger = held - (capacity[order] + 1) - before
    return int(np.count_nonzero(held_by_stronger < sizes[group]))


def fastest_clustering(graph: WorkerGraph, resources: Resources) -> Clustering:
    """The clustering with the highest rate, proven.

    The paper fixes the rate at the slowest worker's bandwidth and minimises streams. The servers may then be the
    bottleneck (too many streams), while a slightly lower rate would give aggregators more members. Here the rate is
    searched. Capacities fall and streams rise with it, so feasibility is monotone and bisection finds the maximum. For
    the same reason more bandwidth or more cores never make it slower.
    """

    def feasible(rate: float) -> bool:
        return rate * fewest_streams(graph, capacities(resources, rate=rate)) <= resources.server_total * (1 + _SLACK)

    high = resources.slowest_worker
    low = min(high, resources.server_total / graph.size)  # the rate of the plain parameter server
    if feasible(high):
        low = high
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if feasible(middle) else (low, middle)
    best = greedy_clustering(graph=graph, capacity=capacities(resources, rate=low))
    return Clustering(head=best.head, method="fastest")
