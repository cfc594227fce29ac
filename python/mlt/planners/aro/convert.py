"""Converts the planners' cluster file to a routing instance, and a solution to the plan file's section.

The cluster file counts tiers from 1 and bandwidths in bit/s, the instance from 0 and in Gbit/s. A job has one
aggregation task per server. Hosts that no chosen job uses are omitted unless they have exactly one leaf.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mlt.planners._shared.documents import InputError, Problem, suggest
from mlt.planners.aro.export import ecmp_overrides, merging_places, segment_ids, segment_list
from mlt.planners.aro.instance import Instance, InstanceError, Job, Link, Port, Switch, Task
from mlt.planners.aro.multiple import Solution
from mlt.planners.aro.routes import TaskPlan
from mlt.planners.cluster import Cluster
from mlt.planners.cluster import Switch as ClusterSwitch
from mlt.planners.plan import JobPlan, PipelineUse, Plan, Route, Routing, TaskRoutes

_GIGA = 1e9


def instance_of(cluster: Cluster, *, jobs: Sequence[str] | None = None) -> Instance:
    """The routing problem of the named jobs (default: every job with servers), all of one weight.

    Raises:
        InputError: a job is unknown or has no servers, or the network is not a Clos that ARO can route.
    """
    names = [job.name for job in cluster.jobs if job.servers] if jobs is None else list(jobs)
    index = {job.name: place for place, job in enumerate(cluster.jobs)}
    problems = [
        Problem(where=("jobs",), message=f"no job is named {name!r}; {suggest(name, list(index))}")
        for name in names
        if name not in index
    ]
    problems += [
        Problem(where=("jobs", index[name], "servers"), message="expected at least one server: ARO routes towards them")
        for name in names
        if name in index and not cluster.job_by_name[name].servers
    ]
    for place, switch in enumerate(cluster.switches):
        if switch.kind == "circuit":
            message = "a circuit switch forwards no packets; expected its circuits written as links"
            problems.append(Problem(where=("switches", place, "kind"), message=message))
    if not names:
        problems.append(
            Problem(where=("jobs",), message="expected a job with servers; without one, no traffic needs a route")
        )
    if problems:
        raise InputError(problems)
    try:
        return _instance(cluster, names)
    except InstanceError as error:
        raise InputError([Problem(where=(), message=str(error))]) from error


def _instance(cluster: Cluster, names: Sequence[str]) -> Instance:
    chosen = [cluster.job_by_name[name] for name in names]
    used = {host for job in chosen for host in (*job.workers, *job.servers)}
    hosts = [
        host.name
        for host in cluster.hosts
        if host.name in used or (len(cluster.links_of[host.name]) == 1 and _at_leaf(cluster, host.name))
    ]
    known = {*hosts, *(switch.name for switch in cluster.switches)}
    links = []
    for link in cluster.links:
        if link.a in known and link.b in known:
            limits = [cluster.host_by_name[end].bandwidth for end in (link.a, link.b) if end in cluster.host_by_name]
            links.append(Link(link.a, link.b, min([link.bandwidth, *limits]) / _GIGA))
    return Instance(
        switches=tuple(_switch(cluster, switch, known) for switch in cluster.switches),
        hosts=tuple(hosts),
        links=tuple(links),
        jobs=tuple(Job(job.name, job.workers, tuple(Task(server, server) for server in job.servers)) for job in chosen),
        notes={"cluster": cluster.name},
    )


def _at_leaf(cluster: Cluster, host: str) -> bool:
    return cluster.tier(cluster.peer(cluster.links_of[host][0], host)) == 1


def _switch(cluster: Cluster, switch: ClusterSwitch, known: set[str]) -> Switch:
    pipeline = cluster.port_pipelines(switch.name)
    ports = []
    for link in cluster.links_of[switch.name]:
        peer, number = cluster.peer(link, switch.name), cluster.port(link, switch.name)
        if peer in known:
            ports.append(Port(peer, number, pipeline[number]))
    ports.sort(key=lambda port: port.number)
    return Switch(switch.name, switch.tier - 1, tuple(ports), switch.aggregates, switch.pipelines)


def cluster_segment_ids(cluster: Cluster) -> dict[str, str]:
    """SRv6 SIDs from the cluster file; switches without one are numbered."""
    return segment_ids(cluster.switch_by_name, {switch.name: switch.sid for switch in cluster.switches})


def ipv4_ends(cluster: Cluster, instance: Instance) -> list[str]:
    """Workers and servers whose address is IPv4, which an SRv6 segment list cannot lead to."""
    ends = {name for job in instance.jobs for name in (*job.workers, *(task.ps for task in job.tasks))}
    addresses = {name: cluster.host_by_name[name].address for name in ends if name in cluster.host_by_name}
    return sorted(name for name, address in addresses.items() if address is not None and ":" not in address)


def add_to_plan(
    plan: Plan, instance: Instance, solution: Solution, *, cluster: Cluster, options: Mapping[str, Any] | None = None
) -> Plan:
    """A copy of ``plan`` whose jobs carry ``solution`` as their routing section, exports included.

    Routes from or to hosts with IPv4 addresses get no segment list; a note says so.
    """
    sids = cluster_segment_ids(cluster)
    without_lists = ipv4_ends(cluster, instance)
    for job in instance.jobs:
        plans = [task_plan for task_plan in solution.plans if task_plan.job == job.name]
        section = Routing(
            method="aro",
            objective=_objective(instance),
            tasks=tuple(_task_routes(instance, sids, task_plan, solution.proven, without_lists) for task_plan in plans),
            ecmp=tuple(ecmp_overrides(instance, plans)),
            solve_time=solution.seconds,
            options={**(options or {}), "found_by": solution.found_by, "gap": solution.gap},
        )
        entry: JobPlan = plan.job(job.name).model_copy(update={"routing": section})
        if without_lists:
            have = "has an IPv4 address" if len(without_lists) == 1 else "have IPv4 addresses"
            note = f"routing: no SRv6 segment lists, because {', '.join(without_lists[:4])} {have}"
            entry = entry.model_copy(update={"notes": (*(one for one in entry.notes if one != note), note)})
        plan = plan.with_job(entry)
    return plan


def _objective(instance: Instance) -> str:
    if len(instance.jobs) > 1:
        return "MJMT"
    return "SJST" if len(instance.tasks) == 1 else "SJMT"


def _task_routes(
    instance: Instance, sids: Mapping[str, str], plan: TaskPlan, proven: bool, without_lists: Sequence[str]
) -> TaskRoutes:
    routes = tuple(
        Route(
            source=worker,
            destination=plan.ps,
            path=route.path,
            aggregated_at=tuple(PipelineUse(switch=s, pipeline=p) for s, p in merging_places(instance, route)),
            segments=() if {worker, plan.ps} & set(without_lists) else segment_list(instance, route, sids),
        )
        for worker, route in plan.routes.items()
    )
    bound = plan.rate if proven or plan.bound is None else plan.bound
    return TaskRoutes(server=plan.ps, rate=plan.rate * _GIGA, rate_bound=bound * _GIGA, routes=routes)
