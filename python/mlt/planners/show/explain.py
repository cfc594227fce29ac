"""A plan as text: the decisions, the gain over no plan, and the bottlenecks."""

from __future__ import annotations

from mlt._shared.counts import count_of
from mlt._shared.units import format_rate, format_size, format_time
from mlt.planners.aleph.aggregation import job_resources
from mlt.planners.aleph.aggregation_model import direct_clustering, hierarchical_time
from mlt.planners.byteps.load_assignment import ring_all_reduce_time
from mlt.planners.cluster import Cluster, Job
from mlt.planners.plan import Aggregation, Assignment, JobPlan, Placement, Plan, Routing
from mlt.planners.plan.effective import effective_cluster, has_circuit_switches
from mlt.planners.plan.link_load import (
    Demand,
    Loads,
    aggregation_demands,
    all_to_all_loads,
    arc_bandwidths,
    most_loaded,
    parameter_server_demands,
    placed_loads,
    ring_demands,
    routed_loads,
    spread_over_shortest_paths,
    with_results,
)

_BARE = ("all-reduce", "parameter-server")  # strategies without a section


def job_loads(cluster: Cluster, entry: JobPlan) -> Loads:
    """Load of every link under one job's plan, results included: its routes where planned, else shortest paths."""
    if entry.routing is not None:
        loads = routed_loads(entry.routing)
        if entry.aggregation is not None and tree_feeds_routes(entry):
            rate = sum(task.rate for task in entry.routing.tasks)
            inner = [Demand(m, c.aggregator, rate) for c in entry.aggregation.clusters for m in c.members]
            for arc, load in spread_over_shortest_paths(cluster, inner, job=entry.job).items():
                loads[arc] = loads.get(arc, 0.0) + load
        return with_results(loads)
    if not cluster.links:
        return {}
    demands: list[Demand] = []
    job = cluster.job_by_name[entry.job]
    if entry.strategy in _BARE and entry.estimates:
        rate = job.model_size * 8 / entry.estimates[0].iteration_time
        if entry.strategy == "all-reduce":  # already contains both phases
            n = len(job.workers)
            return spread_over_shortest_paths(cluster, ring_demands(job, rate=2 * (n - 1) / n * rate), job=job.name)
        demands = parameter_server_demands(cluster, job, rate=rate)
    elif entry.aggregation is not None:
        demands = aggregation_demands(entry.aggregation, rate=entry.aggregation.rate)
    elif entry.assignment is not None and entry.assignment.time > 0:
        held = [service for service in entry.assignment.services if service.load_bytes > 0]
        rates = {service.host: service.load_bytes * 8 / entry.assignment.time for service in held}
        return with_results(all_to_all_loads(cluster, job.workers, rates, job=job.name))
    elif entry.placement is not None and entry.placement.time:
        rate = job.model_size * 8 / entry.placement.time
        return with_results(placed_loads(cluster, job, entry.placement, rate=rate))
    return with_results(spread_over_shortest_paths(cluster, demands, job=entry.job))


def planned_network(cluster: Cluster, plan: Plan) -> Cluster | None:
    """The network under the plan's circuits; None if circuit switches have no planned circuits."""
    if has_circuit_switches(cluster) and not plan.circuits:
        return None
    return effective_cluster(cluster, plan.circuits)


def _gain(before: float | None, after: float | None) -> str:
    if before is None or not after:
        return ""
    ratio = before / after
    if f"{ratio:.2f}" == f"{1 / ratio:.2f}" == "1.00":
        return " (as long)"
    return f" ({ratio:.2f} times faster)" if ratio >= 1 else f" ({1 / ratio:.2f} times slower)"


def baselines(cluster: Cluster, job: Job) -> dict[str, float]:
    """Communication time of one iteration without a plan, by the model of NICs."""
    out = {}
    if job.servers:
        out["a plain parameter server"] = hierarchical_time(
            direct_clustering(len(job.workers)), job_resources(cluster, job)
        )
    bandwidths = [cluster.host_by_name[name].bandwidth for name in job.workers]
    out["ring all-reduce"] = ring_all_reduce_time(model_bytes=job.model_size, worker_bandwidths=bandwidths)
    return out


def _assignment_lines(section: Assignment) -> list[str]:
    own = [service.load_bytes for service in section.services if service.colocated]
    other = [service.load_bytes for service in section.services if not service.colocated]

    def spread(loads: list[float]) -> str:
        low, high = (format_size(float(f"{load:.4g}")) for load in (min(loads), max(loads)))
        return low if low == high else f"{low} to {high}"

    lines = [f"Load assignment ({section.method}): each worker's service sums {spread(own)}"]
    if other:
        lines[0] += f", each server {spread(other)}"
    return [
        *lines,
        f"  partitions of at most {format_size(section.partition_bytes)} hash into {section.hash_space} values",
    ]


def _aggregation_lines(section: Aggregation) -> list[str]:
    sizes = [len(cluster.members) for cluster in section.clusters]
    streams = len(section.clusters) + len(section.direct)
    lines = [
        f"Aggregation ({section.method}): {count_of(len(section.clusters), 'aggregator')} for "
        f"{count_of(sum(sizes), 'worker')}, {_straight(len(section.direct))}; the servers see "
        f"{count_of(streams, 'stream')} instead of {streams + sum(sizes)}"
    ]
    for cluster in section.clusters[:8]:
        lines.append(f"  {cluster.aggregator} <- {', '.join(cluster.members)}")
    if len(section.clusters) > 8:
        lines.append(f"  and {len(section.clusters) - 8} more")
    lines.append(f"  every worker sends at {format_rate(section.rate)}")
    return lines


def _straight(workers: int) -> str:
    return "1 sends straight" if workers == 1 else f"{workers} send straight"


def _routing_lines(section: Routing) -> list[str]:
    lines = [f"Routes ({section.method}): {count_of(sum(len(task.routes) for task in section.tasks), 'route')}"]
    for task in section.tasks:
        places = {(use.switch, use.pipeline) for route in task.routes for use in route.aggregated_at}
        bound = ""
        if task.rate_bound is not None:
            proven = task.rate_bound <= task.rate * (1 + 1e-6)
            bound = ", proven optimal" if proven else f", at most {format_rate(task.rate_bound)} is possible"
        merged = f"aggregated in {count_of(len(places), 'pipeline')}"
        lines.append(f"  to {task.server}: {format_rate(task.rate)} per worker{bound}; {merged}")
    return lines


def _placement_lines(section: Placement) -> list[str]:
    tors = sorted(set(section.tor_of.values()))
    modules = ""
    if section.modules:
        modules = f" in module{'s' if len(section.modules) > 1 else ''} {', '.join(map(str, section.modules))}"
    hosts = f"{count_of(len(section.tor_of), 'host')} over {count_of(len(tors), 'ToR')}"
    return [f"Placement ({section.method}): {hosts}{modules}"]


def tree_feeds_routes(entry: JobPlan) -> bool:
    """Whether the routes start at the tree's aggregators and direct workers, so that both apply."""
    if entry.routing is None or entry.aggregation is None:
        return False
    members = {member for group in entry.aggregation.clusters for member in group.members}
    return not any(route.source in members for task in entry.routing.tasks for route in task.routes)


def planned_time(entry: JobPlan, job: Job) -> float | None:
    """Communication time of one iteration under the sections present: routes, then the tree, then the loads.

    Tasks of one job run at once, each with a part of the model in proportion to its rate. If the routes start at the
    tree's heads, the slower of the two counts; routes from every worker replace the tree. A strategy without a section
    takes its estimated time.
    """
    if entry.strategy in _BARE and entry.estimates:
        return entry.estimates[0].iteration_time
    if entry.routing is not None and entry.routing.tasks:
        total = sum(task.rate for task in entry.routing.tasks)
        time = job.model_size * 8 / total if total > 0 else None
        if time is not None and entry.aggregation is not None and tree_feeds_routes(entry):
            return max(time, entry.aggregation.time)
        return time
    if entry.aggregation is not None:
        return entry.aggregation.time
    if entry.assignment is not None:
        return entry.assignment.time
    return entry.placement.time if entry.placement is not None else None


def _job_lines(cluster: Cluster, network: Cluster | None, entry: JobPlan) -> list[str]:
    job = cluster.job_by_name[entry.job]
    hosts = f"{count_of(len(job.workers), 'worker')}, {count_of(len(job.servers), 'server')}"
    lines = [f"Job {job.name}: {hosts}, {format_size(job.model_size)}"]
    body: list[str] = [f"Strategy: {entry.strategy}"] if entry.strategy is not None else []
    if entry.placement is not None:
        body += _placement_lines(entry.placement)
    if entry.assignment is not None:
        body += _assignment_lines(entry.assignment)
    if entry.aggregation is not None:
        body += _aggregation_lines(entry.aggregation)
    if entry.routing is not None:
        body += _routing_lines(entry.routing)
    time = planned_time(entry, job)
    if time is not None:
        body.append(f"One iteration's communication: {format_time(time)}")
    for name, before in baselines(cluster, job).items():
        body.append(f"  {name} would take {format_time(before)}{_gain(before, time)}")
    busiest = None
    if network is not None:
        busiest = most_loaded(job_loads(network, entry), arc_bandwidths(network))
    if busiest is not None:
        (a, b), utilisation = busiest
        body.append(f"Busiest link: {a} to {b}, {utilisation:.0%} of its bandwidth")
    body += [f"Note: {note}" for note in entry.notes]
    return [lines[0], *(f"  {line}" for line in body)]


def explain_plan(cluster: Cluster, plan: Plan) -> str:
    """The whole plan as text, one paragraph per job."""
    lines: list[str] = []
    network = planned_network(cluster, plan)
    for entry in plan.jobs:
        lines += [*_job_lines(cluster, network, entry), ""]
    if plan.circuits:
        lines.append(count_of(len(plan.circuits), "circuit"))
    if plan.thresholds:
        lines.append(count_of(len(plan.thresholds), "queue threshold"))
    if plan.switch_policy:
        lines.append(f"switch policy: {plan.switch_policy}")
    lines += [f"Note: {note}" for note in plan.notes]
    return "\n".join(lines).rstrip() or "The plan decides nothing yet."
