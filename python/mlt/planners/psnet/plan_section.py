"""PSNet's part of the plan file: circuits for the whole cluster, and one ``placement`` section per job.

All jobs of the cluster file are planned together, since they share circuits, SuperNode switches and trunks. ``verify``
has checked everything that is written. ``Circuit.a_port`` and ``b_port`` are ports of the circuit switch.

Times are those of one push with latency (T_push of equations 5 and 6), with all jobs communicating at once. Pull
overlaps with it in the links' other direction (equation 2), as in the other planners' times. Without overlap: twice
that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mlt._shared.units import format_time
from mlt.planners._shared.documents import InputError, Problem
from mlt.planners.cluster import Cluster
from mlt.planners.plan import Circuit, Placement, Plan
from mlt.planners.plan.link_load import Demand, Loads, spread
from mlt.planners.psnet.addressing import supernode_address
from mlt.planners.psnet.circuits import CircuitPlan, link_rates
from mlt.planners.psnet.cluster_psnet import NamedPSNet, read_psnet
from mlt.planners.psnet.jobs import PlacedJob, check_jobs
from mlt.planners.psnet.psnet import PSNet
from mlt.planners.psnet.routing import RoutePlan, circuits_of, route_jobs
from mlt.planners.psnet.verify import verify_routes


@dataclass(frozen=True)
class TopologyPlan:
    """The decisions, before conversion to a plan file. ``seconds`` and ``as_cabled``: T_push by job; ``fullest``: the
    link that takes longest, by the file's names."""

    named: NamedPSNet
    jobs: tuple[PlacedJob, ...]
    routes: RoutePlan
    circuits: Mapping[int, CircuitPlan]
    seconds: Mapping[str, float]
    as_cabled: Mapping[str, float]
    fullest: tuple[str, str]


def plan_topology(cluster: Cluster, *, extra_paths: int = 0) -> TopologyPlan:
    """Circuits and routes for all jobs of a cluster file that describes a PSNet.

    extra_paths: shortest paths to use between two modules besides the R link-disjoint ones.

    Raises:
        InputError: the cluster is not a PSNet, or a job does not fit it.
        TopologyError: two jobs share a host.
    """
    if not cluster.jobs:
        raise InputError([Problem(where=("jobs",), message="no job to plan; mlt plan topology place adds jobs")])
    named = read_psnet(cluster)
    network = named.network
    jobs = tuple(named.placed(job) for job in cluster.jobs)
    check_jobs(network, jobs)
    routes = route_jobs(network, jobs, extra_paths=extra_paths)
    circuits = circuits_of(network, jobs, routes)
    verdict = verify_routes(network, jobs, routes, {mid: plan.circuits for mid, plan in circuits.items()})
    latency = {job.name: _hops(job, routes) * network.latency_seconds for job in jobs}
    seconds = {name: time + latency[name] for name, time in verdict.job_seconds.items()}
    as_cabled = {name: time + latency[name] for name, time in _as_cabled(network, jobs).items()}
    names = named.file_names()
    fullest = (names[verdict.fullest[0]], names[verdict.fullest[1]])
    return TopologyPlan(named, jobs, routes, circuits, seconds, as_cabled, fullest)


def with_topology(plan: Plan, made: TopologyPlan) -> Plan:
    """``plan`` with its circuits and every job's placement replaced by ``made``."""
    for job in made.jobs:
        section = _placement(made, job)
        gain = made.as_cabled[job.name] / made.seconds[job.name]
        note = (
            f"PSNet: {format_time(made.seconds[job.name])} of communication per iteration, "
            f"{format_time(made.as_cabled[job.name])} with circuits as cabled ({gain:.3g} times as long)"
        )
        entry = plan.job(job.name)
        notes = (*(old for old in entry.notes if not old.startswith("PSNet: ")), note)
        plan = plan.with_job(entry.model_copy(update={"placement": section, "notes": notes}))
    return plan.model_copy(update={"circuits": _circuits(made)})


def _circuits(made: TopologyPlan) -> tuple[Circuit, ...]:
    named = made.named
    return tuple(
        Circuit(
            a=named.worker_names[mid, worker],
            b=named.tor_names[mid, end[0]],
            switch=named.ecs_names[mid],
            a_port=named.worker_ports[mid, worker],
            b_port=named.tor_ports[mid, end],
            bandwidth=named.network.module(mid).worker_bits_per_second,
        )
        for mid, plan in sorted(made.circuits.items())
        for worker, end in enumerate(plan.circuits.of)
        if end is not None
    )


def _placement(made: TopologyPlan, job: PlacedJob) -> Placement:
    named, routes = made.named, made.routes
    tor_of = {}
    for mid, members in job.workers.items():
        for worker in members:
            tor = made.circuits[mid].circuits.tor(worker)
            assert tor is not None  # verified: every worker of a job has its circuit
            tor_of[named.worker_names[mid, worker]] = named.tor_names[mid, tor]
    crosses = [(a, b) for a in job.workers for b in job.servers if a != b]
    options = {
        "time_as_cabled": made.as_cabled[job.name],
        "time_without_overlap": 2 * made.seconds[job.name],
        "slowest_job_time": routes.transfer_seconds,
        "slowest_job_bound": routes.bound_seconds,
        "paths": [
            {
                "from_module": named.file_module[pair[0]],
                "to_module": named.file_module[pair[1]],
                "switches": [named.supernode_names[mid] for mid in path],
                "addresses": [str(supernode_address(named.network, mid)) for mid in path],
                "share": share,
            }
            for pair in crosses
            for path, share in routes.paths[pair].items()
        ],
        "entry": {
            named.tor_names[mid, t]: share
            for mid in job.servers
            for t, share in enumerate(routes.entry.get((job.name, mid), ()))
        },
    }
    return Placement(
        method="psnet-flow" if crosses else "psnet-even",
        modules=tuple(named.file_module[mid] for mid in job.modules),
        tor_of=tor_of,
        time=made.seconds[job.name],
        options=options,
    )


def _hops(job: PlacedJob, routes: RoutePlan) -> int:
    lengths = [len(path) - 1 for a in job.workers for b in job.servers if a != b for path in routes.paths[a, b]]
    return 4 + max(lengths) if lengths else 2


def _as_cabled(network: PSNet, jobs: tuple[PlacedJob, ...]) -> dict[str, float]:
    """Push time of every job without a plan: circuits as cabled, packets spread over shortest paths."""
    rates = link_rates(network)
    neighbours: dict[str, list[str]] = {}
    for a, b in sorted(rates):
        neighbours.setdefault(a, []).append(b)
    hosts = {name for mid in network.mids for name in (*network.workers(mid), *network.servers(mid))}
    of_job: dict[str, Loads] = {}
    total: Loads = {}
    for job in jobs:
        workers = [network.worker_name(mid, w) for mid, members in job.workers.items() for w in members]
        servers = [network.server_name(mid, s) for mid, members in job.servers.items() for s in members]
        part = job.size_bytes / len(servers)
        demands = [Demand(worker, server, part) for worker in workers for server in servers]
        of_job[job.name] = spread(neighbours, hosts, demands, job=job.name)
        for link, load in of_job[job.name].items():
            total[link] = total.get(link, 0.0) + load
    return {name: max(8 * total[link] / rates[link] for link in loads) for name, loads in of_job.items()}
