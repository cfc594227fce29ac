"""The cluster file: the one input of every planner.

Hosts with their bandwidth and CPU, switches with pipelines and aggregation ability, links, and jobs with workers, model
size and servers. Absent on purpose: decisions, which belong in the plan file (``plan``).

Units: bandwidths are bits per second in each direction, sizes are bytes, durations are seconds.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from functools import cached_property
from ipaddress import IPv6Address, ip_address
from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import AfterValidator, Field, PositiveInt, model_validator
from typing_extensions import Self

from mlt._shared.unit_fields import RATE, SIZE, TIME, Unit
from mlt.planners._shared.documents import Document, InputError, Problem, parse_document, read_document, suggest

Name = Annotated[str, Field(min_length=1, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.:/-]*$")]
Address = Annotated[str, AfterValidator(lambda text: str(ip_address(text)))]
SegmentId = Annotated[str, AfterValidator(lambda text: str(IPv6Address(text)))]
Port = Annotated[int, Field(ge=0)]
BitsPerSecond = Annotated[float, Unit(RATE, above=0)]
Bytes = Annotated[float, Unit(SIZE, above=0)]
Seconds = Annotated[float, Unit(TIME)]


class Named(Document):
    """Base of all entries that others refer to by name."""

    name: Name


class Host(Named):
    """A host that can be a worker, an aggregator or a server."""

    bandwidth: BitsPerSecond = Field(description="Bandwidth that jobs may use of its NIC, in each direction")
    cpu_cores: float = Field(default=1.0, ge=0, description="Number of CPU cores free for aggregation")
    gpus: int = Field(default=0, ge=0)
    address: Address | None = None
    module: int | None = Field(default=None, ge=0, description="Pod or SuperNode it belongs to")


class Switch(Named):
    """A packet switch, or (``kind: circuit``) a circuit switch, which only connects pairs of ports."""

    tier: PositiveInt = Field(default=1, description="1 next to hosts (leaf, edge, ToR), 2 above it, and so on")
    kind: Literal["packet", "circuit"] = "packet"
    aggregates: bool = Field(default=False, description="Whether it can sum gradients that pass through it")
    pipelines: PositiveInt = 1
    port_pipelines: dict[Port, int] | None = Field(
        default=None,
        description="Pipeline of each port; by default each class of ports (towards hosts, towards each other tier) "
        "is split in port order over the pipelines",
    )
    buffer: Bytes | None = Field(default=None, description="Packet memory shared by its ports; required for thresholds")
    queues: int = Field(default=8, ge=3, le=8, description="Number of queues per port")
    address: Address | None = None
    sid: SegmentId | None = Field(default=None, description="SRv6 segment identifier")
    module: int | None = Field(default=None, ge=0, description="Pod or SuperNode it belongs to")


class Link(Document):
    """A full-duplex cable between two nodes; omitted ports are numbered from 0 in file order."""

    a: Name
    b: Name
    bandwidth: BitsPerSecond = Field(description="Bandwidth in each direction")
    delay: Seconds = 1e-6
    a_port: Port | None = None
    b_port: Port | None = None


class Job(Named):
    """One training job: data-parallel workers and, if any, the hosts that sum for them."""

    workers: tuple[Name, ...] = Field(min_length=1)
    servers: tuple[Name, ...] = Field(default=(), description="Summation services / parameter servers")
    model_size: Bytes = Field(description="Gradient bytes per worker and iteration")
    compute_time: Seconds = Field(default=0.0, description="Computation time of one iteration on the slowest worker")
    aggregation_cores_per_gbit: float = Field(
        default=0.06, ge=0, description="CPU cores to aggregate 1 Gbit/s; 0.06 is ALEPH's eBPF (table 2), 0.75 its TCP"
    )


class Cluster(Document):
    """A whole cluster file; every name is validated.

    Raises:
        InputError: a name is unknown or repeated, or a port or pipeline is in use or out of range.
    """

    version: Literal[1] = 1
    name: Name = "cluster"
    hosts: tuple[Host, ...] = Field(min_length=1)
    switches: tuple[Switch, ...] = ()
    links: tuple[Link, ...] = ()
    jobs: tuple[Job, ...] = ()

    @model_validator(mode="after")
    def _check(self) -> Self:
        problems = [*self._name_problems(), *self._link_problems(), *self._job_problems()]
        if problems:
            raise InputError(problems)
        self.__dict__["links"] = self._numbered_links()
        problems = self._port_problems()
        if problems:
            raise InputError(problems)
        return self

    # -- queries ------------------------------------------------------------------------------------------------------

    @cached_property
    def host_by_name(self) -> dict[str, Host]:
        return {host.name: host for host in self.hosts}

    @cached_property
    def switch_by_name(self) -> dict[str, Switch]:
        return {switch.name: switch for switch in self.switches}

    @cached_property
    def job_by_name(self) -> dict[str, Job]:
        return {job.name: job for job in self.jobs}

    @cached_property
    def nodes(self) -> tuple[str, ...]:
        """Names of all hosts, then of all switches."""
        return (*self.host_by_name, *self.switch_by_name)

    @cached_property
    def links_of(self) -> dict[str, tuple[Link, ...]]:
        """Links that touch each node, in file order; every node has an entry."""
        out: dict[str, list[Link]] = {name: [] for name in self.nodes}
        for link in self.links:
            out[link.a].append(link)
            out[link.b].append(link)
        return {name: tuple(links) for name, links in out.items()}

    def tier(self, node: str) -> int:
        """0 for a host, the switch's tier otherwise."""
        switch = self.switch_by_name.get(node)
        return switch.tier if switch else 0

    def peer(self, link: Link, node: str) -> str:
        """The node at the other end of ``link``."""
        return link.b if link.a == node else link.a

    def port(self, link: Link, node: str) -> int:
        """The port of ``node`` on ``link``."""
        port = link.a_port if link.a == node else link.b_port
        assert port is not None  # set when the cluster was read
        return port

    def port_pipelines(self, switch: str) -> dict[int, int]:
        """Pipeline of every connected port: from the file, else by an equal split of each class of ports, in order.

        A class is the ports towards hosts, or towards switches of one tier. Of its n ports in order, port i goes
        to pipeline floor(i * P / n).
        """
        entry = self.switch_by_name[switch]
        if entry.port_pipelines is not None:
            return dict(entry.port_pipelines)
        classes: dict[int, list[int]] = {}
        for link in self.links_of[switch]:
            classes.setdefault(self.tier(self.peer(link, switch)), []).append(self.port(link, switch))
        return {
            port: index * entry.pipelines // len(ports)
            for ports in classes.values()
            for index, port in enumerate(sorted(ports))
        }

    def with_job(self, job: Job) -> Cluster:
        """The same cluster with ``job`` in place of the job of that name."""
        jobs = tuple(job if other.name == job.name else other for other in self.jobs)
        return Cluster(name=self.name, hosts=self.hosts, switches=self.switches, links=self.links, jobs=jobs)

    def digest(self) -> str:
        """SHA-256 of the contents; identifies the cluster of a plan."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()

    # -- checks -------------------------------------------------------------------------------------------------------

    def _name_problems(self) -> list[Problem]:
        problems = []
        seen: dict[str, str] = {}
        sections: list[tuple[str, tuple[Named, ...]]]
        sections = [("hosts", self.hosts), ("switches", self.switches), ("jobs", self.jobs)]
        for section, items in sections:
            if section == "jobs":
                seen = {}
            for index, item in enumerate(items):
                if item.name in seen:
                    message = f"the name {item.name!r} is already used by {seen[item.name]}; expected a new one"
                    problems.append(Problem(where=(section, index, "name"), message=message))
                seen.setdefault(item.name, f"{section}[{index}]")
        return problems

    def _link_problems(self) -> list[Problem]:
        known = list(self.nodes)
        known_set = set(known)
        problems = []
        for index, link in enumerate(self.links):
            for end, name in (("a", link.a), ("b", link.b)):
                if name not in known_set:
                    message = f"no host or switch is named {name!r}; {suggest(name, known)}"
                    problems.append(Problem(where=("links", index, end), message=message))
            if link.a == link.b:
                message = f"the link joins {link.a!r} to itself; expected two different nodes"
                problems.append(Problem(where=("links", index), message=message))
        return problems

    def _job_problems(self) -> list[Problem]:
        problems = []
        hosts = list(self.host_by_name)
        for index, job in enumerate(self.jobs):
            for role, names in (("workers", job.workers), ("servers", job.servers)):
                counts = Counter(names)
                for place, name in enumerate(names):
                    if name not in self.host_by_name:
                        message = f"no host is named {name!r}; {suggest(name, hosts)}"
                    elif counts[name] > 1 and names.index(name) != place:
                        message = f"the host {name!r} is listed twice; expected each host once"
                    elif role == "servers" and name in job.workers:
                        message = f"the host {name!r} is a worker of this job too; expected a host that is not"
                    else:
                        continue
                    problems.append(Problem(where=("jobs", index, role, place), message=message))
        return problems

    def _numbered_links(self) -> tuple[Link, ...]:
        taken: dict[str, set[int]] = {name: set() for name in self.nodes}
        for link in self.links:
            for node, port in ((link.a, link.a_port), (link.b, link.b_port)):
                if port is not None:
                    taken[node].add(port)
        free = dict.fromkeys(taken, 0)

        def number(node: str, port: int | None) -> int:
            if port is not None:
                return port
            while free[node] in taken[node]:
                free[node] += 1
            taken[node].add(free[node])
            return free[node]

        return tuple(
            link.model_copy(update={"a_port": number(link.a, link.a_port), "b_port": number(link.b, link.b_port)})
            for link in self.links
        )

    def _port_problems(self) -> list[Problem]:
        problems = []
        used: dict[tuple[str, int], int] = {}
        for index, link in enumerate(self.links):
            for end, node in (("a", link.a), ("b", link.b)):
                key = (node, self.port(link, node))
                if key in used:
                    message = f"port {key[1]} of {node!r} is already taken by links[{used[key]}]; expected a free port"
                    problems.append(Problem(where=("links", index, f"{end}_port"), message=message))
                used.setdefault(key, index)
        for index, switch in enumerate(self.switches):
            stated = switch.port_pipelines
            if stated is None:
                continue
            for port, pipeline in stated.items():
                if not 0 <= pipeline < switch.pipelines:
                    message = f"pipeline {pipeline} does not exist; expected 0 to {switch.pipelines - 1}"
                    problems.append(Problem(where=("switches", index, "port_pipelines", port), message=message))
            missing = sorted({self.port(link, switch.name) for link in self.links_of[switch.name]} - set(stated))
            if missing:
                message = (
                    f"connected ports {missing} of {switch.name!r} have no pipeline; expected all of them, or no map"
                )
                problems.append(Problem(where=("switches", index, "port_pipelines"), message=message))
        return problems


def read_cluster(path: Path | str) -> Cluster:
    """Read a cluster file.

    Raises:
        InputError: invalid, with the line and the expected value.
    """
    others = {"cluster_digest": "this is a plan; a cluster file was expected, such as the plan was made for"}
    return read_document(Cluster, path, others=others)


def parse_cluster(text: str, *, source: str = "cluster") -> Cluster:
    """Read a cluster from YAML text; ``source`` is its name in errors."""
    return parse_document(Cluster, text, source=source)


def dump_cluster(cluster: Cluster) -> str:
    """``cluster`` as YAML text that reads back as an equal cluster."""
    data = cluster.model_dump(mode="json", exclude_none=True)
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    return str(yaml.dump(data, Dumper=dumper, sort_keys=False, default_flow_style=None, width=120))
