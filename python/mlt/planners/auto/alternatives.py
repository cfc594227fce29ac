"""Alternatives for aggregating one job's gradients, each timed by the analytic model on the cluster's real links.

BytePS and ALEPH assume that only NICs limit (full bisection bandwidth). If the cluster file has links, the time of the
busiest link is computed too, with streams spread over shortest paths, and the larger time counts. An alternative that
overloads an oversubscribed uplink then ranks correctly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mlt._shared.units import format_time
from mlt.planners.aleph.aggregation import AggregationResult, Method, plan_aggregation
from mlt.planners.aleph.worker_graph import Reach
from mlt.planners.byteps.load_assignment import parameter_server_time, plan_assignment, ring_all_reduce_time
from mlt.planners.cluster import Cluster, Job
from mlt.planners.plan import Estimate, JobPlan
from mlt.planners.plan.link_load import (
    Arc,
    Demand,
    Loads,
    aggregation_demands,
    all_to_all_loads,
    arc_bandwidths,
    most_loaded,
    parameter_server_demands,
    ring_demands,
    spread_over_shortest_paths,
    with_results,
)


@dataclass(frozen=True, kw_only=True)
class Alternative:
    """One alternative, its time and its bottleneck; ``sections`` is its content of the plan file."""

    name: str
    time: float
    reason: str
    sections: JobPlan

    def estimate(self) -> Estimate:
        """The alternative as a line of the plan file."""
        return Estimate(name=self.name, iteration_time=self.time, reason=self.reason)


@dataclass(frozen=True)
class Skipped:
    """An alternative that this cluster or job excludes, and the reason."""

    name: str
    reason: str


def link_time(
    cluster: Cluster, job: Job, demands_bits: Sequence[Demand], *, results: bool = True
) -> tuple[float, Arc | None]:
    """Seconds of the busiest link for ``demands_bits`` (rates read as bits per iteration), and the name of that link.

    With ``results`` the sums return along the same paths at the same time.
    """
    if not cluster.links:
        return 0.0, None
    loads = spread_over_shortest_paths(cluster, demands_bits, job=job.name)
    return _busiest(cluster, with_results(loads) if results else loads)


def _busiest(cluster: Cluster, loads: Loads) -> tuple[float, Arc | None]:
    found = most_loaded(loads, arc_bandwidths(cluster))
    return (found[1], found[0]) if found else (0.0, None)


def _combined(nic_time: float, why: str, links: tuple[float, Arc | None]) -> tuple[float, str]:
    time, arc = links
    if arc is None or time <= nic_time * (1 + 1e-9):
        return nic_time, why
    return time, f"link {arc[0]} to {arc[1]} is busiest (the NICs alone would allow {format_time(nic_time)})"


def ring(cluster: Cluster, job: Job) -> Alternative:
    """Plain ring all-reduce over the workers."""
    n, bits = len(job.workers), job.model_size * 8
    nics = ring_all_reduce_time(
        model_bytes=job.model_size, worker_bandwidths=[cluster.host_by_name[w].bandwidth for w in job.workers]
    )
    links = link_time(cluster, job, ring_demands(job, rate=2 * (n - 1) / n * bits), results=False)
    slowest = min(job.workers, key=lambda name: cluster.host_by_name[name].bandwidth)
    time, reason = _combined(nics, f"the slowest worker, {slowest}, sends and receives everything twice", links)
    return Alternative(
        name="all-reduce", time=time, reason=reason, sections=JobPlan(job=job.name, strategy="all-reduce")
    )


def parameter_server(cluster: Cluster, job: Job) -> Alternative | Skipped:
    """Workers send directly to the servers."""
    hosts = cluster.host_by_name
    nics = parameter_server_time(
        model_bytes=job.model_size,
        worker_bandwidths=[hosts[w].bandwidth for w in job.workers],
        server_bandwidths=[hosts[s].bandwidth for s in job.servers],
    )
    if nics is None:
        return Skipped("parameter server", "the job has no servers")
    bits = job.model_size * 8
    links = link_time(cluster, job, parameter_server_demands(cluster, job, rate=bits))
    total = sum(hosts[s].bandwidth for s in job.servers)
    full = len(job.workers) * bits / total >= nics * (1 - 1e-9)
    why = "the servers' bandwidth, shared by all workers" if full else "the slowest worker's bandwidth"
    time, reason = _combined(nics, why, links)
    sections = JobPlan(job=job.name, strategy="parameter-server")
    return Alternative(name="parameter server", time=time, reason=reason, sections=sections)


def byteps(cluster: Cluster, job: Job) -> Alternative:
    """BytePS: every host sums a part."""
    section = plan_assignment(cluster, job)
    links: tuple[float, Arc | None] = (0.0, None)
    if cluster.links:
        bits = {service.host: service.load_bytes * 8 for service in section.services if service.load_bytes > 0}
        links = _busiest(cluster, with_results(all_to_all_loads(cluster, job.workers, bits, job=job.name)))
    held = sum(1 for service in section.services if service.load_bytes > 0)
    slowest = min(job.workers, key=lambda name: cluster.host_by_name[name].bandwidth)
    once = job.model_size * 8 / cluster.host_by_name[slowest].bandwidth
    why = "one service sums everything" if held == 1 else f"all {held} services finish together"
    if len(job.workers) > 1 and section.time <= once * (1 + 1e-9):
        why = f"the slowest worker, {slowest}, sends the whole model once, which no assignment avoids"
    time, reason = _combined(section.time, why, links)
    section = section.model_copy(update={"time": time})
    return Alternative(
        name="byteps",
        time=time,
        reason=reason,
        sections=JobPlan(job=job.name, strategy="load-assignment", assignment=section),
    )


def aleph(
    cluster: Cluster, job: Job, *, method: Method, reach: Reach = "cluster", seed: int = 0
) -> Alternative | Skipped:
    """ALEPH's tree by one clustering method."""
    name = f"aleph ({method}, within {reach})"
    if not job.servers:
        return Skipped(name, "the job has no servers to end the tree")
    result: AggregationResult = plan_aggregation(cluster, job, method=method, reach=reach, seed=seed)
    section = result.section
    links = link_time(cluster, job, aggregation_demands(section, rate=job.model_size * 8))
    time, reason = _combined(section.time, result.binding, links)
    section = section.model_copy(update={"time": time, "rate": job.model_size * 8 / time})
    return Alternative(
        name=name, time=time, reason=reason, sections=JobPlan(job=job.name, strategy="tree", aggregation=section)
    )


def host_alternatives(cluster: Cluster, job: Job, *, seed: int = 0) -> list[Callable[[], Alternative | Skipped]]:
    """The alternatives that need hosts only, in calling order."""
    runs: list[Callable[[], Alternative | Skipped]] = [
        lambda: ring(cluster, job),
        lambda: parameter_server(cluster, job),
        lambda: byteps(cluster, job),
    ]
    for reach in _reaches(cluster):
        for method in _METHODS:
            runs.append(lambda method=method, reach=reach: aleph(cluster, job, method=method, reach=reach, seed=seed))  # type: ignore[misc]
    return runs


_METHODS: tuple[Method, ...] = ("m-wcha", "fastest")


def _reaches(cluster: Cluster) -> tuple[Reach, ...]:
    """Racks are an alternative only if hosts have switches."""
    return ("cluster", "rack") if cluster.links else ("cluster",)
