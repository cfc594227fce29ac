"""The plan section ``aggregation``: aggregators and their members, from a cluster file and a job.

Runs the named algorithm, or (``best``) several, and keeps the one with the shortest communication time in the model.
The plain parameter server is always a candidate, so a plan is never slower than no plan.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from mlt._shared.counts import count_of
from mlt.planners._shared.documents import suggest
from mlt.planners.aleph.aggregation_model import (
    Bottleneck,
    Resources,
    bottleneck,
    capacities,
    direct_clustering,
    fastest_clustering,
    hierarchical_time,
)
from mlt.planners.aleph.clustering import Clustering, best_of_seeds
from mlt.planners.aleph.clustering_greedy import greedy_clustering
from mlt.planners.aleph.clustering_locality import localise
from mlt.planners.aleph.worker_graph import Reach, WorkerGraph, worker_graph
from mlt.planners.byteps.load_assignment import ring_all_reduce_time
from mlt.planners.cluster import Cluster, Job
from mlt.planners.plan import Aggregation, Estimate, InfeasibleError, ServerShare, WorkerCluster

Method = Literal["best", "m-wcha", "fastest", "greedy", "direct"]
METHODS: tuple[Method, ...] = get_args(Method)
_RANKED: tuple[Method, ...] = ("m-wcha", "fastest", "greedy", "direct")


@dataclass(frozen=True, eq=False, kw_only=True)
class AggregationResult:
    """The chosen clustering as a plan section, the alternatives by rank, and the bottleneck of the chosen one."""

    section: Aggregation
    estimates: tuple[Estimate, ...]
    binding: str


def job_resources(cluster: Cluster, job: Job) -> Resources:
    """Bandwidths, cores and servers of ``job``.

    Raises:
        InfeasibleError: the job has no server.
    """
    if not job.servers:
        raise InfeasibleError(
            job=job.name,
            constraint="no server",
            message="hierarchical aggregation ends at a parameter server; give the job at least one in 'servers'",
        )
    hosts = cluster.host_by_name
    return Resources(
        bandwidths=np.array([hosts[name].bandwidth for name in job.workers]),
        cores=np.array([hosts[name].cpu_cores for name in job.workers]),
        server_bandwidths=np.array([hosts[name].bandwidth for name in job.servers]),
        cores_per_gbit=job.aggregation_cores_per_gbit,
        model_bytes=job.model_size,
    )


def run_method(method: Method, *, graph: WorkerGraph, resources: Resources, seed: int) -> Clustering:
    """One algorithm at the paper's rate, the slowest worker's bandwidth (``fastest`` searches its own)."""
    capacity = capacities(resources, rate=resources.slowest_worker)
    run: dict[str, Callable[[], Clustering]] = {
        "m-wcha": lambda: best_of_seeds(graph=graph, capacity=capacity, seed=seed),
        "fastest": lambda: fastest_clustering(graph, resources),
        "greedy": lambda: greedy_clustering(graph=graph, capacity=capacity),
        "direct": lambda: direct_clustering(graph.size),
    }
    if method not in run:
        raise ValueError(f"no clustering method {method!r}; {suggest(method, METHODS)}")
    return localise(run[method](), graph)


def _explain(found: Bottleneck, job: Job) -> str:
    return found.constraint.format(job.workers[found.worker] if found.worker is not None else "")


def plan_aggregation(
    cluster: Cluster, job: Job, *, method: Method = "best", reach: Reach = "cluster", seed: int = 0
) -> AggregationResult:
    """Choose aggregators and members for one job.

    Args:
        method: One algorithm, or ``best`` of M-WCHA, the rate search, the greedy dominating set and no aggregation.
        reach: Pairs that may aggregate for each other: workers of one rack, of one module, or all.
        seed: The same seed gives the same plan.

    Raises:
        InfeasibleError: the job has no server.
        ValueError: unknown method.
    """
    resources = job_resources(cluster, job)
    graph = worker_graph(cluster, job, reach=reach)
    names = _RANKED if method == "best" else (method,)
    runs = [run_method(name, graph=graph, resources=resources, seed=seed) for name in names]
    # On equal times, fewer streams leave more capacity at the servers; then the order of _RANKED decides.
    ranked = sorted(runs, key=lambda run: (round(hierarchical_time(run, resources), 12), run.streams))
    best, found = ranked[0], bottleneck(ranked[0], resources)
    binding = _explain(found, job)
    estimates = tuple(
        Estimate(
            name=run.method,
            iteration_time=hierarchical_time(run, resources),
            reason=f"{count_of(run.streams, 'stream')} to the servers; bound by "
            + _explain(bottleneck(run, resources), job),
        )
        for run in ranked
    )
    return AggregationResult(
        section=aggregation_section(best, job=job, resources=resources, seed=seed), estimates=estimates, binding=binding
    )


def aggregation_section(clustering: Clustering, *, job: Job, resources: Resources, seed: int | None) -> Aggregation:
    """``clustering`` as a section of the plan file, together with the baselines' times."""
    names = job.workers
    clusters = tuple(
        WorkerCluster(aggregator=names[head], members=tuple(names[w] for w in clustering.members(head)))
        for head in clustering.aggregators
    )
    shares = zip(job.servers, resources.shares, strict=True)
    return Aggregation(
        method=clustering.method,
        clusters=clusters,
        direct=tuple(names[w] for w in clustering.direct),
        shares=tuple(ServerShare(server=server, share=float(share)) for server, share in shares),
        rate=bottleneck(clustering, resources).rate,
        time=hierarchical_time(clustering, resources),
        time_parameter_server=hierarchical_time(direct_clustering(len(names)), resources),
        time_all_reduce=ring_all_reduce_time(
            model_bytes=resources.model_bytes, worker_bandwidths=resources.bandwidths.tolist()
        ),
        seed=seed,
    )
