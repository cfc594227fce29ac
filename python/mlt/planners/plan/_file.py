"""The plan file: the one output of every planner, read by the launcher, the simulator and the in-kernel aggregator.

Every section is optional: a planner sets its own and keeps the others (``Plan.with_job``). JSON on disk.
Units as in the cluster file: bits per second, bytes, seconds, or text with a unit.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator
from typing_extensions import Self

from mlt._shared.unit_fields import RATE, SIZE, TIME, Unit
from mlt.planners._shared.documents import Document, InputError, Problem, parse_document, read_document
from mlt.planners.cluster import Cluster, Name

Share = Annotated[float, Field(ge=0, le=1)]
BitsPerSecond = Annotated[float, Unit(RATE)]
Bytes = Annotated[float, Unit(SIZE)]
Seconds = Annotated[float, Unit(TIME)]


class InfeasibleError(Exception):
    """No plan exists: ``constraint`` names the bottleneck, the message the fix."""

    def __init__(self, *, job: str, constraint: str, message: str) -> None:
        self.job = job
        self.constraint = constraint
        super().__init__(f"job {job!r} cannot be planned: {constraint}: {message}")


class ServiceLoad(Document):
    """One summation service: its bytes, and its ranges of hash values (BytePS section 4.1)."""

    host: Name
    colocated: bool = Field(description="Runs on a worker of the job, whose own bytes then stay off the network")
    load_bytes: Bytes
    hash_begin: int = Field(ge=0, description="First hash value of its range")
    hash_end: int = Field(ge=0, description="One past the last; equal to hash_begin when it holds nothing")


class Assignment(Document):
    """Distribution of bytes: partitions hash into [0, hash_space), ranges map to services."""

    method: Literal["closed-form", "linear-programme"]
    hash_space: int = Field(gt=0)
    partition_bytes: Annotated[int, Unit(SIZE, above=0, whole=True)]
    services: tuple[ServiceLoad, ...]
    time: Seconds = Field(description="Communication time of one iteration by the model")
    time_all_reduce: Seconds | None = None
    time_parameter_server: Seconds | None = None


class WorkerCluster(Document):
    """An aggregator and the workers that send to it (itself not listed)."""

    aggregator: Name
    members: tuple[Name, ...]


class ServerShare(Document):
    """The fraction of every aggregated gradient that goes to one server."""

    server: Name
    share: Share


class Aggregation(Document):
    """ALEPH's two-level tree: members to aggregators, aggregators and ``direct`` workers to the servers."""

    method: Name
    clusters: tuple[WorkerCluster, ...]
    direct: tuple[Name, ...] = Field(default=(), description="Workers in no cluster: they send straight to the servers")
    shares: tuple[ServerShare, ...]
    rate: BitsPerSecond = Field(description="Rate of every worker's stream")
    time: Seconds
    time_parameter_server: Seconds | None = None
    time_all_reduce: Seconds | None = None
    seed: int | None = None


class PipelineUse(Document):
    """A place where a task's flows merge."""

    switch: Name
    pipeline: int = Field(ge=0)


class Route(Document):
    """The route of one worker's stream of one task: every node from worker to server, both included."""

    source: Name
    destination: Name
    path: tuple[Name, ...] = Field(min_length=2)
    aggregated_at: tuple[PipelineUse, ...] = ()
    segments: tuple[str, ...] = Field(default=(), description="SRv6 segment list, in order of travel")


class EcmpOverride(Document):
    """A static next hop that replaces the ECMP hash for one source and destination."""

    switch: Name
    source: Name
    destination: Name
    next_hop: Name
    port: int = Field(ge=0)


class TaskRoutes(Document):
    """One aggregation task: one job's workers to one of its servers."""

    server: Name
    rate: BitsPerSecond = Field(description="Rate at which every worker of the task can send")
    rate_bound: BitsPerSecond | None = Field(default=None, description="Proven upper bound; equal to rate when optimal")
    routes: tuple[Route, ...]


class Routing(Document):
    """ARO's routes of one job, in the forms that networks accept."""

    method: Name
    objective: Name | None = None
    tasks: tuple[TaskRoutes, ...]
    ecmp: tuple[EcmpOverride, ...] = ()
    solve_time: Seconds | None = None
    options: dict[str, Any] = Field(default_factory=dict)


class Circuit(Document):
    """Two nodes connected through a circuit switch, or directly (``switch`` absent)."""

    a: Name
    b: Name
    switch: Name | None = None
    a_port: int | None = Field(default=None, ge=0)
    b_port: int | None = Field(default=None, ge=0)
    bandwidth: BitsPerSecond | None = None


class Placement(Document):
    """PSNet's placement of one job: its modules, and each worker's and server's top-of-rack switch."""

    method: Name
    modules: tuple[int, ...] = ()
    tor_of: dict[Name, Name] = Field(default_factory=dict, description="host -> ToR its circuit leads to")
    time: Seconds | None = Field(default=None, description="Batch communication time by the model")
    options: dict[str, Any] = Field(default_factory=dict)


class Threshold(Document):
    """RED/ECN thresholds and the hard limit of one class of model data (MLT appendix B), class 0 highest.

    An absent ``switch`` or ``port`` means all of them.
    """

    switch: Name | None = None
    port: int | None = Field(default=None, ge=0)
    queue: int = Field(ge=0)
    red_min_bytes: Bytes
    red_max_bytes: Bytes
    drop_probability: Share = 1.0
    limit_bytes: Bytes | None = Field(default=None, description="Depth at which every packet is dropped")


class Estimate(Document):
    """One alternative that was considered, timed by a model or the simulator; the plan holds the first one."""

    name: str
    iteration_time: Seconds
    source: Literal["model", "simulator"] = "model"
    reason: str = ""


Strategy = Literal["all-reduce", "parameter-server", "load-assignment", "tree", "routes", "tree-and-routes", "circuits"]


class JobPlan(Document):
    """All decisions for one job."""

    job: Name
    strategy: Strategy | None = Field(
        default=None, description="How gradients are aggregated; by default what the sections present say"
    )
    assignment: Assignment | None = None
    aggregation: Aggregation | None = None
    routing: Routing | None = None
    placement: Placement | None = None
    estimates: tuple[Estimate, ...] = ()
    notes: tuple[str, ...] = ()


class Plan(Document):
    """A whole plan file."""

    version: Literal[1] = 1
    cluster: Name
    cluster_digest: str = Field(description="Cluster.digest() of the file it was made from")
    seed: int = 0
    jobs: tuple[JobPlan, ...] = ()
    circuits: tuple[Circuit, ...] = ()
    thresholds: tuple[Threshold, ...] = ()
    switch_policy: str | None = Field(default=None, description="Name of the QoS policy for mlt switch")
    notes: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _check(self) -> Self:
        names = [job.job for job in self.jobs]
        problems = [
            Problem(where=("jobs", i, "job"), message=f"the job {name!r} is planned twice; expected one entry per job")
            for i, name in enumerate(names)
            if names.index(name) != i
        ]
        for i, job in enumerate(self.jobs):
            if job.assignment:
                problems += _range_problems(job.assignment, ("jobs", i, "assignment", "services"))
        if problems:
            raise InputError(problems)
        return self

    def job(self, name: str) -> JobPlan:
        """The entry of one job, empty if nothing is planned for it yet."""
        return next((job for job in self.jobs if job.job == name), JobPlan(job=name))

    def with_job(self, entry: JobPlan) -> Plan:
        """A copy in which ``entry`` replaces the previous plan for its job."""
        jobs = [entry if job.job == entry.job else job for job in self.jobs]
        if entry.job not in {job.job for job in self.jobs}:
            jobs.append(entry)
        return self.model_copy(update={"jobs": tuple(jobs)})

    def mismatches(self, cluster: Cluster) -> list[Problem]:
        """One problem for a plan of another cluster file, else one for each of its names that ``cluster`` lacks."""
        unknown = self._unknown_names(cluster)
        if self.cluster_digest == cluster.digest():
            return unknown
        if self.cluster != cluster.name:
            message = f"a plan for another cluster: {self.cluster!r}, not {cluster.name!r}"
        else:
            message = f"a plan for another version of cluster {self.cluster!r}"
            missing = list(dict.fromkeys(problem.message.removeprefix("the cluster has ") for problem in unknown))
            more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
            message += f" (the present one has {', '.join(missing[:3])}{more})" if missing else ""
        return [Problem(where=(), message=message)]

    def _unknown_names(self, cluster: Cluster) -> list[Problem]:
        hosts, nodes = set(cluster.host_by_name), {*cluster.host_by_name, *cluster.switch_by_name}
        problems = []
        for i, job in enumerate(self.jobs):
            used: list[tuple[str, str, set[str]]] = []
            if job.job not in cluster.job_by_name:
                problems.append(Problem(where=("jobs", i, "job"), message=f"the cluster has no job {job.job!r}"))
            if job.assignment:
                used += [("assignment", service.host, hosts) for service in job.assignment.services]
            if job.aggregation:
                tree = job.aggregation
                named = [n for c in tree.clusters for n in (c.aggregator, *c.members)] + list(tree.direct)
                used += [("aggregation", name, hosts) for name in [*named, *(s.server for s in tree.shares)]]
            if job.routing:
                paths = (route.path for task in job.routing.tasks for route in task.routes)
                used += [("routing", name, nodes) for path in paths for name in path]
            unknown = dict.fromkeys((section, name) for section, name, known in used if name not in known)
            problems += [
                Problem(where=("jobs", i, section), message=f"the cluster has no node {name!r}")
                for section, name in unknown
            ]
        return problems


def _range_problems(assignment: Assignment, where: tuple[str | int, ...]) -> list[Problem]:
    """Ranges must tile [0, hash_space), so that a partition maps to exactly one service."""
    expected = 0
    for i, service in enumerate(assignment.services):
        if service.hash_begin != expected or service.hash_end < service.hash_begin:
            message = f"expected a range that begins at {expected}, where the one before ends"
            return [Problem(where=(*where, i, "hash_begin"), message=message)]
        expected = service.hash_end
    if expected != assignment.hash_space:
        return [
            Problem(where=where, message=f"ranges end at {expected}; expected the hash space, {assignment.hash_space}")
        ]
    return []


def new_plan(cluster: Cluster, *, seed: int = 0) -> Plan:
    """An empty plan for ``cluster``."""
    return Plan(cluster=cluster.name, cluster_digest=cluster.digest(), seed=seed)


def read_plan(path: Path | str) -> Plan:
    """Read a plan file.

    Raises:
        InputError: invalid, with the line and the expected value.
    """
    others = {"hosts": "this is a cluster file; a plan was expected, such as 'mlt plan auto -o plan.json' writes"}
    return read_document(Plan, path, others=others)


def parse_plan(text: str, *, source: str = "plan") -> Plan:
    """Read a plan from JSON text."""
    return parse_document(Plan, text, source=source, as_json=True)


def dump_plan(plan: Plan) -> str:
    """``plan`` as JSON text that reads back as an equal plan; empty sections are omitted."""
    return plan.model_dump_json(indent=2, exclude_none=True) + "\n"
