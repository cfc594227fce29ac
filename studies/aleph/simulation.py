"""The numbers behind ALEPH's figures 13 to 16, from its section 6.4: who sends what over how many links.

The paper emulates this in mininet; its four metrics follow from the clustering and the topology alone, so they are
computed here. Readings that the text leaves open, each chosen because it meets the printed values:

* Available bandwidth is ``ratio * 10 Gbit/s`` with the normal ratio *clipped* to [0.1, 0.9]: at a deviation of 0.3 the
  paper's Horovod uses exactly 100 Gbit/s, so its slowest worker has exactly 1 Gbit/s, which a truncated normal misses.
* Workers are the first n servers in rack order and servers of parameters the last ten (another pod): the printed
  85.3 GB of BytePS for 150 workers is 150 * 97 MB over exactly six links, with 1 GB = 1,024 MB.
* Anyone may aggregate for anyone (figure 13's 12 aggregators over 100 workers in racks of 10), but members go to the
  nearest aggregator with a free seat. The text on figure 14 ("workers with one gradient hop") can also mean that only
  workers of one rack aggregate for each other; that is "ALEPH in racks", which cannot reach figure 13's 12 streams.
* b is the slowest worker's bandwidth of each draw. "ALEPH at the floor" has b = 1 Gbit/s, the lowest that the text
  allows a worker, whatever was drawn: what a rate that must hold while bandwidths change would be, and the only other
  reading found that meets figure 14's 51.7 GB at the stated deviation.
* Overhead counts gradients towards aggregation only; Horovod counts both of its phases.
* Hops of a gradient are the switches it crosses until something aggregates it: Horovod's nine steps for ten workers of
  one rack, three switches for BytePS in a leaf-spine network.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mlt.planners.aleph.aggregation_model import Resources, bottleneck, capacities, fastest_clustering
from mlt.planners.aleph.clustering import Clustering, best_of_seeds
from mlt.planners.aleph.clustering_locality import localise
from mlt.planners.aleph.worker_graph import Floats, Ints, grouped_graph
from studies.aleph.listed_graph import complete_graph

LINE_RATE = 10e9
FLOOR = 0.1  # lowest ratio of available bandwidth
MODEL_BYTES = 97e6
SERVERS = 10
PAPER_GB = 1024e6  # see above


def usage(clustering: Clustering, *, rate: float) -> tuple[float, float]:
    """Bandwidth in use at ``rate`` by all workers and by all servers, bits per second and direction (figure 13).

    A worker uses what it sends; an aggregator the larger of what it sends and receives, (1 + g) streams.
    """
    return float((clustering.member_counts + 1).sum()) * rate, clustering.streams * rate


@dataclass(frozen=True, kw_only=True)
class Fabric:
    """A tree of racks and pods; servers are numbered rack by rack."""

    name: str
    racks: int
    servers_per_rack: int
    racks_per_pod: int

    @property
    def servers(self) -> int:
        return self.racks * self.servers_per_rack

    def links(self, a: Ints, b: Ints) -> Ints:
        """Links on a shortest path between servers: 2 in a rack, 4 in a pod, 6 across pods; 0 to itself."""
        rack_a, rack_b = a // self.servers_per_rack, b // self.servers_per_rack
        pods_differ = rack_a // self.racks_per_pod != rack_b // self.racks_per_pod
        out: Ints = np.where(a == b, 0, np.where(rack_a == rack_b, 2, np.where(pods_differ, 6, 4)))
        return out

    def switches(self, a: Ints, b: Ints) -> Ints:
        """Switches on that path."""
        out: Ints = np.maximum(self.links(a, b) - 1, 0)
        return out


FAT_TREE = Fabric(name="fat-tree", racks=32, servers_per_rack=10, racks_per_pod=4)  # 320 servers, 8 pods
LEAF_SPINE = Fabric(name="leaf-spine", racks=30, servers_per_rack=10, racks_per_pod=30)  # 300 servers, one "pod"
FABRICS = (FAT_TREE, LEAF_SPINE)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One system on one draw of bandwidths."""

    system: str
    worker_usage: float  # bits per second, all workers
    server_usage: float  # bits per second, all parameter servers
    overhead: float  # bytes times links
    hops: float  # switches per gradient until it is aggregated
    streams: int  # flows into the parameter servers
    rate: float  # of one worker's stream


def available_bandwidth(workers: int, *, deviation: float, rng: np.random.Generator) -> Floats:
    """Clipped normal ratios of the line rate, mean one half."""
    clipped: Floats = np.clip(rng.normal(0.5, deviation, workers), FLOOR, 0.9) * LINE_RATE
    return clipped


def clustered_outcome(system: str, clustering: Clustering, resources: Resources, fabric: Fabric) -> Outcome:
    """A parameter server, with or without aggregators in front of it."""
    n = len(clustering.head)
    workers, servers = np.arange(n), fabric.servers - 1 - np.arange(SERVERS)
    is_head = clustering.head == workers
    to_head = fabric.links(workers, clustering.head)[~is_head].sum()
    heads = workers[is_head]
    to_servers = fabric.links(heads[:, None], servers[None, :]) @ resources.shares
    up = fabric.switches(workers[:, None], servers[None, :]) @ resources.shares
    first = np.where(
        is_head, np.where(clustering.member_counts > 0, 0.0, up), fabric.switches(workers, clustering.head)
    )
    rate = bottleneck(clustering, resources).rate
    worker_usage, server_usage = usage(clustering, rate=rate)
    return Outcome(
        system=system,
        worker_usage=worker_usage,
        server_usage=server_usage,
        overhead=float(to_head + to_servers.sum()) * MODEL_BYTES,
        hops=float(first.mean()),
        streams=clustering.streams,
        rate=rate,
    )


def ring_outcome(resources: Resources, fabric: Fabric) -> Outcome:
    """Ring all-reduce over the workers in rack order."""
    n = len(resources.bandwidths)
    here, there = np.arange(n), np.roll(np.arange(n), -1)
    rate = resources.slowest_worker
    return Outcome(
        system="Horovod",
        worker_usage=n * rate,
        server_usage=0.0,
        overhead=float(fabric.links(here, there).sum()) * 2 * (n - 1) / n * MODEL_BYTES,
        hops=float(fabric.switches(here, there).mean()) * (n - 1),
        streams=0,
        rate=rate,
    )


def simulate(fabric: Fabric, *, workers: int, deviation: float, seed: int) -> dict[str, Outcome]:
    """All systems on one draw.

    Raises:
        ValueError: workers and parameter servers do not fit the fabric.
    """
    if workers + SERVERS > fabric.servers:
        raise ValueError(f"{workers} workers and {SERVERS} servers do not fit {fabric.servers} machines")
    rng = np.random.default_rng([seed, workers, round(deviation * 1000)])
    resources = Resources(
        bandwidths=available_bandwidth(workers, deviation=deviation, rng=rng),
        cores=np.full(workers, np.inf),
        server_bandwidths=np.full(SERVERS, LINE_RATE),
        cores_per_gbit=0.0,
        model_bytes=MODEL_BYTES,
    )
    racks = np.arange(workers) // fabric.servers_per_rack
    graph = complete_graph(workers, nearness=[racks, racks // fabric.racks_per_pod])
    capacity = capacities(resources, rate=resources.slowest_worker)
    aleph = best_of_seeds(graph=graph, capacity=capacity, seed=seed)
    at_floor = best_of_seeds(graph=graph, capacity=capacities(resources, rate=FLOOR * LINE_RATE), seed=seed)
    in_racks = best_of_seeds(graph=grouped_graph(racks), capacity=capacity, seed=seed)
    outcomes = [
        clustered_outcome("ALEPH", localise(aleph, graph), resources, fabric),
        clustered_outcome("ALEPH in racks", in_racks, resources, fabric),
        clustered_outcome("ALEPH at the floor", localise(at_floor, graph), resources, fabric),
        clustered_outcome("rate search", localise(fastest_clustering(graph, resources), graph), resources, fabric),
        clustered_outcome("BytePS", Clustering(head=np.arange(workers), method="direct"), resources, fabric),
        ring_outcome(resources, fabric),
    ]
    return {outcome.system: outcome for outcome in outcomes}


def mean_outcomes(
    fabric: Fabric, *, workers: int, deviation: float, seeds: Sequence[int]
) -> dict[str, dict[str, float]]:
    """Mean and 95 % confidence half-width (``..._ci``) of each metric of each system over ``seeds``."""
    runs = [simulate(fabric, workers=workers, deviation=deviation, seed=seed) for seed in seeds]
    out: dict[str, dict[str, float]] = {}
    for system in runs[0]:
        row: dict[str, float] = {}
        for metric in ("worker_usage", "server_usage", "overhead", "hops", "streams", "rate"):
            values = np.array([getattr(run[system], metric) for run in runs], dtype=float)
            row[metric] = float(values.mean())
            row[f"{metric}_ci"] = float(1.96 * values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else 0.0
        out[system] = row
    return out
