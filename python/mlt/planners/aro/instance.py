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
    """The whole problem. ``notes``: its origin (seed, share of programmable switches, port mapping).

    It checks that the links make a Clos; the reader of the cluster file has checked names, ports and jobs.
    """

    switches: tuple[Switch, ...]
    hosts: tuple[str, ...]
    links: tuple[Link, ...]
    jobs: tuple[Job, ...]
    notes: Mapping[str, str | int | float | bool] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_links(self)

    @cached_property
    def switch(self) -> Mapping[str, Switch]:
        return {switch.name: switch for switch in self.switches}

    def tier(self, name: str) -> int:
        """Tier of a switch; -1 for a host."""
        switch = self.switch.get(name)
        return -1 if switch is None else switch.tier

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
