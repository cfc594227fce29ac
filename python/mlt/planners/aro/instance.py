"""The routing problem's input: a Clos network, its programmable switches port by port, and the jobs to aggregate.

Explicit where the paper (ARO, sections II-B and IV-A) is silent: every switch lists its ports in order, each with its
hardware pipeline. Rates and capacities are in Gbit/s; a link has its capacity in each direction. Tier 0 is the leaf
(edge) level; hosts have one link, to a leaf.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property


class InstanceError(ValueError):
    """The instance is inconsistent; the message names the object and the expected value."""


@dataclass(frozen=True)
class Port:
    """One port of a switch: the peer, the port's number and the pipeline that serves it."""

    peer: str
    number: int
    pipeline: int = 0


@dataclass(frozen=True)
class Switch:
    """A switch with its ports in order; ``programmable`` ones aggregate in each ingress pipeline separately."""

    name: str
    tier: int
    ports: tuple[Port, ...]
    programmable: bool = False
    pipelines: int = 1

    @cached_property
    def pipeline_of(self) -> Mapping[str, int]:
        """Peer name to the pipeline of the port towards it."""
        return {port.peer: port.pipeline for port in self.ports}

    @cached_property
    def port_number(self) -> Mapping[str, int]:
        """Peer name to port number."""
        return {port.peer: port.number for port in self.ports}


@dataclass(frozen=True)
class Link:
    """An undirected link with its capacity per direction in Gbit/s."""

    a: str
    b: str
    gbps: float


@dataclass(frozen=True)
class Task:
    """One aggregation task: the workers of its job send to the parameter server on host ``ps``."""

    name: str
    ps: str


@dataclass(frozen=True)
class Job:
    """A training job: its workers, one task per parameter server, and its weight (beta in equation 3)."""

    name: str
    workers: tuple[str, ...]
    tasks: tuple[Task, ...]
    weight: float = 1.0


@dataclass(frozen=True)
class Instance:
    """The whole problem. ``notes``: its origin (seed, share of programmable switches, port mapping)."""

    switches: tuple[Switch, ...]
    hosts: tuple[str, ...]
    links: tuple[Link, ...]
    jobs: tuple[Job, ...]
    notes: Mapping[str, str | int | float | bool] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check(self)

    @cached_property
    def switch(self) -> Mapping[str, Switch]:
        return {switch.name: switch for switch in self.switches}

    @cached_property
    def capacity(self) -> Mapping[tuple[str, str], float]:
        """Directed link (from, to) to Gbit/s."""
        both = {(link.a, link.b): link.gbps for link in self.links}
        both.update({(link.b, link.a): link.gbps for link in self.links})
        return both

    @cached_property
    def leaf_of(self) -> Mapping[str, str]:
        """Host to its leaf switch."""
        hosts = set(self.hosts)
        found: dict[str, str] = {}
        for link in self.links:
            if link.a in hosts:
                found[link.a] = link.b
            if link.b in hosts:
                found[link.b] = link.a
        return found

    @property
    def tasks(self) -> tuple[tuple[Job, Task], ...]:
        return tuple((job, task) for job in self.jobs for task in job.tasks)

    @cached_property
    def fastest_gbps(self) -> float:
        """b-bar of equation 11."""
        return max(link.gbps for link in self.links)


def _check(instance: Instance) -> None:
    _check_names(instance)
    _check_links(instance)
    _check_ports(instance)
    _check_jobs(instance)


def _check_names(instance: Instance) -> None:
    seen: set[str] = set()
    for name in [*(switch.name for switch in instance.switches), *instance.hosts]:
        if name in seen:
            raise InstanceError(f"{name!r} names two nodes; every switch and host needs a unique name")
        seen.add(name)


def _check_links(instance: Instance) -> None:
    tiers = {switch.name: switch.tier for switch in instance.switches}
    tiers.update(dict.fromkeys(instance.hosts, -1))
    pairs: set[frozenset[str]] = set()
    uplinks = dict.fromkeys(instance.hosts, 0)
    for link in instance.links:
        where = f"link {link.a}-{link.b}"
        for end in (link.a, link.b):
            if end not in tiers:
                raise InstanceError(f"{where}: {end!r} is neither a switch nor a host")
        if not link.gbps > 0:
            raise InstanceError(f"{where}: capacity {link.gbps} Gbit/s; it must be positive")
        if frozenset((link.a, link.b)) in pairs:
            raise InstanceError(f"{where}: listed twice; merge parallel links into one with their summed capacity")
        pairs.add(frozenset((link.a, link.b)))
        if abs(tiers[link.a] - tiers[link.b]) != 1:
            raise InstanceError(f"{where}: joins tiers {tiers[link.a]} and {tiers[link.b]}; Clos links join neighbours")
        for end in (link.a, link.b):
            if end in uplinks:
                uplinks[end] += 1
    for host, count in uplinks.items():
        if count != 1:
            raise InstanceError(f"host {host!r} has {count} links; exactly one, to a leaf, is supported")


def _check_ports(instance: Instance) -> None:
    peers: dict[str, set[str]] = {switch.name: set() for switch in instance.switches}
    for link in instance.links:
        for end, other in ((link.a, link.b), (link.b, link.a)):
            if end in peers:
                peers[end].add(other)
    for switch in instance.switches:
        listed = [port.peer for port in switch.ports]
        if len(set(listed)) != len(listed) or set(listed) != peers[switch.name]:
            odd = sorted(set(listed) ^ peers[switch.name]) or [name for name in listed if listed.count(name) > 1]
            raise InstanceError(f"switch {switch.name!r}: ports and links disagree about {', '.join(odd[:5])}")
        numbers = [port.number for port in switch.ports]
        if len(set(numbers)) != len(numbers):
            raise InstanceError(f"switch {switch.name!r}: two of its ports have the same number")
        if switch.pipelines < 1:
            raise InstanceError(f"switch {switch.name!r}: {switch.pipelines} pipelines; at least one is needed")
        for port in switch.ports:
            if not 0 <= port.pipeline < switch.pipelines:
                raise InstanceError(
                    f"switch {switch.name!r}: port to {port.peer!r} is on pipeline {port.pipeline}, "
                    f"but the switch has pipelines 0 to {switch.pipelines - 1}"
                )


def _check_jobs(instance: Instance) -> None:
    hosts = set(instance.hosts)
    names: set[str] = set()
    if not instance.jobs:
        raise InstanceError("no jobs: at least one job with workers and a task is needed")
    for job in instance.jobs:
        if not job.workers or not job.tasks:
            raise InstanceError(f"job {job.name!r}: needs at least one worker and one task")
        if not job.weight > 0:
            raise InstanceError(f"job {job.name!r}: weight {job.weight} must be positive")
        if len(set(job.workers)) != len(job.workers):
            raise InstanceError(f"job {job.name!r}: a worker is listed twice")
        for name in (job.name, *(f"{job.name}/{task.name}" for task in job.tasks)):
            if name in names:
                raise InstanceError(f"{name!r} names two jobs or two tasks of a job")
            names.add(name)
        for host in (*job.workers, *(task.ps for task in job.tasks)):
            if host not in hosts:
                raise InstanceError(f"job {job.name!r}: {host!r} is not a host of the cluster")
        for task in job.tasks:
            if task.ps in job.workers:
                raise InstanceError(
                    f"job {job.name!r}, task {task.name!r}: host {task.ps!r} is also one of the workers"
                )
