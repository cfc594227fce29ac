"""Routing of jobs across modules: circuits, entry ToRs and inter-module paths together, as a multi-commodity flow.

Source: the open question of PSNet, section 6 ("the routing algorithm decides not only the configuration of ECS in each
module but also the paths between workers and parameter servers in different modules"). Not in the paper: this model.

All given jobs push at once; theta is the time of the busiest link, and is minimised exactly. With u = S/P of a job, and
w and p its workers and servers in a module, W and P in total:

    n[job, module, ToR]   workers of the job on a ToR (integer): its circuits
    r[job, module, ToR]   bytes from other modules that reach each of the job's servers here through that ToR's NIC
    x[a, b, path]         bytes from module a to module b on one of R link-disjoint paths (merged over jobs)

    a server's NIC         n u + r                     <= theta B_s
    SuperNode -> ToR       sum over jobs of r p        <= theta B_s
    ToR -> SuperNode       sum over jobs of n (P - p) u <= theta B_s
    inter-module link      sum of x over its paths     <= theta (links) B
    worker's link          S                           <= theta B_w
    ToR's ports            sum over jobs of n          <= M_d

Pull is the same with every arrow reversed. Among the optima, it takes one with circuits as even as possible in which
the second busiest link has the lowest load, then the third, and so on (``routing_fair``). So a job that shares no link
with the slowest one is as fast as its paths allow. Last, bytes take as few inter-module links as possible. Equation 6
is the special case of one job, two adjacent modules and workers that R divides in both; otherwise the ToR with one more
worker takes longer than the equation says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mlt.planners.psnet.checks import TopologyError, require_count
from mlt.planners.psnet.circuits import CircuitPlan, assign_circuits
from mlt.planners.psnet.jobs import PlacedJob, check_jobs
from mlt.planners.psnet.paths import ModulePath
from mlt.planners.psnet.psnet import PSNet
from mlt.planners.psnet.routing_fair import settle
from mlt.planners.psnet.routing_model import (
    NODE_LIMIT,
    SAME,
    Array,
    Model,
    add_paths,
    build_model,
    demands,
    even_counts,
    lower_bounds,
    solve,
    solve_integer,
    theta_of,
)
from mlt.planners.psnet.wiring import Pair

__all__ = ["JobModule", "RoutePlan", "circuits_of", "demands", "route_jobs"]

JobModule = tuple[str, int]


@dataclass(frozen=True, kw_only=True)
class RoutePlan:
    """Routes of all bytes.

    transfer_seconds: theta, the push (and the pull) time of the slowest job, without latency.
    bound_seconds: proven lower bound on theta for these placements and path sets; equal to it when optimal.
    counts: (job, module) -> its workers per ToR. entry: (job, module) -> share of the bytes from other modules that
        enters through each ToR. paths: (from, to) -> path -> share of the bytes between the two modules.
    """

    transfer_seconds: float
    bound_seconds: float
    counts: Mapping[JobModule, tuple[int, ...]]
    entry: Mapping[JobModule, tuple[float, ...]]
    paths: Mapping[Pair, Mapping[ModulePath, float]]

    @property
    def gap(self) -> float:
        """Relative distance to the bound."""
        return (self.transfer_seconds - self.bound_seconds) / self.transfer_seconds


def route_jobs(
    network: PSNet,
    jobs: Sequence[PlacedJob],
    *,
    extra_paths: int = 0,
) -> RoutePlan:
    """Circuits, entry ToRs and paths for all jobs together.

    The paths between two modules are R link-disjoint ones, and ``extra_paths`` shortest ones, disjoint or not.

    Raises:
        TopologyError: two jobs share a host, modules are disconnected, or no routing was found within the node limit.
    """
    check_jobs(network, jobs)
    require_count("extra_paths", extra_paths, minimum=0)
    if not jobs:
        raise TopologyError("no job to route")
    trunks = network.wiring.trunks()
    # Units keep the numbers near 1: bytes of the largest job, and seconds of its worker link.
    unit_bytes = max(job.size_bytes for job in jobs)
    unit_rate = max(network.module(mid).worker_bits_per_second for mid in network.mids) / 8
    unit_seconds = unit_bytes / unit_rate
    model = build_model(network, jobs, unit_bytes, unit_rate)
    paths = add_paths(network, jobs, trunks, model, extra_paths, unit_bytes, unit_rate)
    low = lower_bounds(network, jobs, model, unit_bytes, unit_rate)

    # Even circuits are nearly always optimal, and the relaxation proves it; otherwise the integer model is solved.
    bound = theta_of(solve(model, low))
    even = solve(model, low, fixed=even_counts(network, jobs, model))
    best = even
    if even is None or theta_of(even) > bound * (1 + SAME):
        result = solve_integer(model, low)
        if result.mip_dual_bound is not None:
            bound = max(bound, float(result.mip_dual_bound))
        if result.x is not None and (even is None or theta_of(even) > float(result.x[0]) * (1 + SAME)):
            best = np.asarray(result.x)
    if best is None:
        raise TopologyError(f"no routing found within {NODE_LIMIT} nodes of branch and bound; place fewer jobs at once")
    crossing = [job for job in jobs if any(job.workers_in(mid) < job.worker_count for mid in job.servers)]
    enough = min((_worker_seconds(network, job) / unit_seconds for job in crossing), default=np.inf)
    solution = settle(model, best, enough=enough)
    return RoutePlan(
        transfer_seconds=float(solution[0]) * unit_seconds,
        bound_seconds=min(bound, float(solution[0])) * unit_seconds,
        counts=_counts(network, jobs, model, solution),
        entry=_entry(network, jobs, model, solution),
        paths=_path_shares(paths, model, solution),
    )


def circuits_of(network: PSNet, jobs: Sequence[PlacedJob], plan: RoutePlan) -> dict[int, CircuitPlan]:
    """The circuits that implement ``plan.counts``, for every module with a worker; as few moves as possible."""
    out = {}
    for mid in sorted({mid for job in jobs for mid in job.workers}):
        parts = [(job.workers[mid], plan.counts[job.name, mid]) for job in jobs if mid in job.workers]
        out[mid] = assign_circuits(network.module(mid), parts)
    return out


def _worker_seconds(network: PSNet, job: PlacedJob) -> float:
    """Time of the slowest worker's own link: a lower bound of the job's time."""
    return max(8 * job.size_bytes / network.module(mid).worker_bits_per_second for mid in job.workers)


def _counts(
    network: PSNet, jobs: Sequence[PlacedJob], model: Model, solution: Array
) -> dict[JobModule, tuple[int, ...]]:
    return {
        (job.name, mid): tuple(
            round(float(solution[model.columns["n", job.name, mid, t]])) for t in range(network.tors)
        )
        for job in jobs
        for mid in job.workers
    }


def _entry(
    network: PSNet, jobs: Sequence[PlacedJob], model: Model, solution: Array
) -> dict[JobModule, tuple[float, ...]]:
    out = {}
    for job in jobs:
        for mid in job.servers:
            columns = [model.columns.get(("r", job.name, mid, t)) for t in range(network.tors)]
            amounts = [max(0.0, float(solution[c])) for c in columns if c is not None]
            if amounts:
                out[job.name, mid] = tuple(amount / sum(amounts) for amount in amounts)
    return out


def _path_shares(
    paths: Mapping[Pair, Sequence[ModulePath]], model: Model, solution: Array
) -> dict[Pair, dict[ModulePath, float]]:
    out: dict[Pair, dict[ModulePath, float]] = {}
    for (a, b), choices in paths.items():
        amounts = {path: max(0.0, float(solution[model.columns["x", a, b, path]])) for path in choices}
        total = sum(amounts.values())
        out[a, b] = {path: amount / total for path, amount in amounts.items() if amount > 1e-9 * total}
    return out
