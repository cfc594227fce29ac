"""Routing of jobs across modules: circuits, entry ToRs and inter-module paths together, as a multi-commodity flow.

Source: the open question of PSNet, section 6 ("the routing algorithm decides not only the configuration of ECS in each
module but also the paths between workers and parameter servers in different modules"). Not in the paper: this model.

All given jobs push at once; theta is the time of the fullest link, and is minimised exactly. With u = S/P of a job, w
and p its workers and servers in a module, W and P in all:

    n[job, module, ToR]   workers of the job on a ToR (integer): its circuits
    r[job, module, ToR]   bytes from other modules that reach each of the job's servers here through that ToR's card
    x[a, b, path]         bytes from module a to module b on one of R link-disjoint paths (merged over jobs)

    a server's card        n u + r                     <= theta B_s
    SuperNode -> ToR       sum over jobs of r p        <= theta B_s
    ToR -> SuperNode       sum over jobs of n (P - p) u <= theta B_s
    inter-module link      sum of x over its paths     <= theta (links) B
    worker's link          S                           <= theta B_w
    ToR's ports            sum over jobs of n          <= M_d

Pull is the same with every arrow reversed. Among the optima, one whose bytes travel the fewest inter-module links is
taken, with circuits as even as they can be. Equation 6 is the special case of one job, two adjacent modules and workers
that R divides in both; otherwise the ToR with one worker more takes longer than the equation says.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import ceil
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, OptimizeResult, milp
from scipy.sparse import csr_array

from mlt.planners.topology.circuits import CircuitPlan, Circuits, ModuleJob, assign_circuits
from mlt.planners.topology.graph import TopologyError, require_count
from mlt.planners.topology.jobs import PlacedJob, check_jobs
from mlt.planners.topology.paths import ModulePath, disjoint_paths, remaining_trunks, shortest_paths
from mlt.planners.topology.psnet import PSNet
from mlt.planners.topology.wiring import Pair

JobModule = tuple[str, int]
Array: TypeAlias = NDArray[np.float64]
IntArray: TypeAlias = NDArray[np.int64]

#: Relative difference below which two times are the same.
_SAME = 1e-7


@dataclass(frozen=True, kw_only=True)
class RoutePlan:
    """Where every byte goes.

    transfer_seconds: theta, the push (and the pull) time of the slowest job, without latency.
    bound_seconds: proven lower bound on theta for these placements and path sets; equal to it when optimal.
    counts: (job, module) -> its workers per ToR. entry: (job, module) -> share of the bytes from other modules that
    comes in through each ToR. paths: (from, to) -> path -> share of the bytes between the two modules.
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

    @property
    def longest_path(self) -> int:
        """Inter-module links on the longest path used; 0 when nothing crosses modules."""
        return max((len(path) - 1 for paths in self.paths.values() for path in paths), default=0)

    def hops(self) -> int:
        """Links between a worker and a server, at most: 2 in a module, 4 + inter-module links across."""
        return 4 + self.longest_path if self.longest_path else 2


@dataclass
class _Model:
    """Columns and rows of the programme, by name. Column 0 is theta."""

    columns: dict[object, int] = field(default_factory=lambda: {"theta": 0})
    rows: list[dict[int, float]] = field(default_factory=list)
    low: list[float] = field(default_factory=list)
    high: list[float] = field(default_factory=list)

    def column(self, *key: object) -> int:
        return self.columns.setdefault(key, len(self.columns))

    def row(self, terms: Mapping[int, float], *, low: float = -np.inf, high: float = np.inf) -> None:
        self.rows.append(dict(terms))
        self.low.append(low)
        self.high.append(high)

    def constraint(self) -> LinearConstraint:
        cells = [(r, c, v) for r, terms in enumerate(self.rows) for c, v in terms.items()]
        rows, columns, values = zip(*cells, strict=True)
        shape = (len(self.rows), len(self.columns))
        return LinearConstraint(csr_array((values, (rows, columns)), shape=shape), self.low, self.high)


def route_jobs(
    network: PSNet,
    jobs: Sequence[PlacedJob],
    *,
    lost_links: Mapping[Pair, int] | None = None,
    extra_paths: int = 0,
    node_limit: int = 5000,
) -> RoutePlan:
    """Circuits, entry ToRs and paths for all jobs together.

    lost_links: failed links of each inter-module trunk. The paths between two modules are link-disjoint, R of them when
        nothing failed.
    extra_paths: this many shortest paths are added for every pair of modules, disjoint or not.
    node_limit: branch-and-bound nodes; a count, not a time, so that the same input gives the same plan on any machine.

    Raises:
        TopologyError: machines are double-booked, modules are cut off from each other, or the limit was too low.
    """
    check_jobs(network, jobs)
    require_count("node_limit", node_limit)
    require_count("extra_paths", extra_paths, at_least=0)
    if not jobs:
        raise TopologyError("no job to route")
    trunks = remaining_trunks(network.wiring, dict(lost_links or {}))
    # Bytes in units of the largest job and seconds in units of its worker link keep the numbers near 1.
    unit_bytes = max(job.size_bytes for job in jobs)
    unit_rate = max(network.module(mid).worker_bits_per_second for mid in network.mids) / 8
    model = _build(network, jobs, unit_bytes, unit_rate)
    paths = _add_paths(network, jobs, trunks, model, extra_paths, unit_bytes, unit_rate)
    low = _bounds(network, jobs, model, unit_bytes, unit_rate)

    # Even circuits are nearly always optimal, and the relaxation proves it; only otherwise is the integer model solved.
    bound = _theta(_solve(model, low))
    even = _solve(model, low, fixed=_even_counts(network, jobs, model))
    best = even
    if even is None or _theta(even) > bound * (1 + _SAME):
        result = _milp(model, low, node_limit)
        if result.mip_dual_bound is not None:
            bound = max(bound, float(result.mip_dual_bound))
        if result.x is not None and (even is None or _theta(even) > float(result.x[0]) * (1 + _SAME)):
            best = np.asarray(result.x)
    if best is None:
        raise TopologyError(f"no routing found within {node_limit} nodes; raise node_limit")
    solution = _shortest(model, low, best)
    scale = unit_bytes / unit_rate
    return RoutePlan(
        transfer_seconds=float(solution[0]) * scale,
        bound_seconds=min(bound, float(solution[0])) * scale,
        counts=_counts(network, jobs, model, solution),
        entry=_entry(network, jobs, model, solution),
        paths=_path_shares(paths, model, solution),
    )


def circuits_of(
    network: PSNet,
    jobs: Sequence[PlacedJob],
    plan: RoutePlan,
    *,
    current: Mapping[int, Circuits] | None = None,
) -> dict[int, CircuitPlan]:
    """The circuits that put ``plan.counts`` into effect, for every module with a worker; as few moves as possible."""
    out = {}
    for mid in sorted({mid for job in jobs for mid in job.workers}):
        parts = [
            ModuleJob(name=job.name, workers=job.workers[mid], counts=plan.counts[job.name, mid])
            for job in jobs
            if mid in job.workers
        ]
        out[mid] = assign_circuits(network.module(mid), parts, current=(current or {}).get(mid))
    return out


def demands(jobs: Sequence[PlacedJob]) -> dict[Pair, float]:
    """Bytes that all jobs push from one module to another, by (from, to)."""
    out: dict[Pair, float] = {}
    for job in jobs:
        for a in job.workers:
            for b in job.servers:
                if a != b:
                    out[a, b] = out.get((a, b), 0.0) + job.sent_bytes(a, b)
    return dict(sorted(out.items()))


def _build(network: PSNet, jobs: Sequence[PlacedJob], unit_bytes: float, unit_rate: float) -> _Model:
    model = _Model()
    tors = range(network.tors)
    into: dict[tuple[int, int], dict[int, float]] = {}
    out_of: dict[tuple[int, int], dict[int, float]] = {}
    ports: dict[tuple[int, int], dict[int, float]] = {}
    for job in jobs:
        u = job.share_bytes / unit_bytes
        for mid in job.modules:
            card = network.module(mid).server_bits_per_second / 8 / unit_rate
            workers, servers = job.workers_in(mid), job.servers_in(mid)
            here = [model.column("n", job.name, mid, t) for t in tors] if workers else []
            coming = job.worker_count - workers
            entering = [model.column("r", job.name, mid, t) for t in tors] if servers and coming else []
            if here:
                model.row(dict.fromkeys(here, 1.0), low=workers, high=workers)
            if entering:
                model.row(dict.fromkeys(entering, 1.0), low=coming * u, high=coming * u)
            for t in tors:
                if servers:
                    terms = {0: -card}
                    terms |= {here[t]: u} if here else {}
                    terms |= {entering[t]: 1.0} if entering else {}
                    model.row(terms, high=0.0)
                if entering:
                    into.setdefault((mid, t), {0: -card})[entering[t]] = float(servers)
                if here:
                    ports.setdefault((mid, t), {})[here[t]] = 1.0
                    if job.server_count > servers:
                        out_of.setdefault((mid, t), {0: -card})[here[t]] = (job.server_count - servers) * u
    for terms in (*into.values(), *out_of.values()):
        model.row(terms, high=0.0)
    for (mid, _), terms in ports.items():
        model.row(terms, high=network.module(mid).tor_downlinks)
    return model


def _add_paths(
    network: PSNet,
    jobs: Sequence[PlacedJob],
    trunks: dict[Pair, int],
    model: _Model,
    extra_paths: int,
    unit_bytes: float,
    unit_rate: float,
) -> dict[Pair, list[ModulePath]]:
    paths: dict[Pair, list[ModulePath]] = {}
    on_link: dict[Pair, dict[int, float]] = {}
    for (a, b), amount in demands(jobs).items():
        extra = shortest_paths(trunks, a, b, count=extra_paths)
        paths[a, b] = list(dict.fromkeys([*disjoint_paths(trunks, a, b), *extra]))
        columns = {path: model.column("x", a, b, path) for path in paths[a, b]}
        model.row(dict.fromkeys(columns.values(), 1.0), low=amount / unit_bytes, high=amount / unit_bytes)
        for path, column in columns.items():
            for link in pairwise(path):
                on_link.setdefault(link, {})[column] = 1.0
    for (a, b), terms in on_link.items():
        capacity = trunks[min(a, b), max(a, b)] * network.inter_rate / 8 / unit_rate
        model.row({0: -capacity, **terms}, high=0.0)
    return paths


def _bounds(network: PSNet, jobs: Sequence[PlacedJob], model: _Model, unit_bytes: float, unit_rate: float) -> Array:
    """Lower bounds of the columns.

    theta is at least what a worker's link needs, and what the ToR needs that has the most workers of a job: whole ones,
    so ceil(w / R) of them. The latter is what the relaxed model lacks to be tight where R does not divide w.
    """
    low = np.zeros(len(model.columns))
    for job in jobs:
        for mid in job.workers:
            link = network.module(mid).worker_bits_per_second / 8 / unit_rate
            card = network.module(mid).server_bits_per_second / 8 / unit_rate
            most = ceil(job.workers_in(mid) / network.tors) * job.share_bytes / unit_bytes
            local, remote = bool(job.servers_in(mid)), job.server_count - job.servers_in(mid)
            low[0] = max(low[0], job.size_bytes / unit_bytes / link, most * local / card, most * remote / card)
    return low


def _even_counts(network: PSNet, jobs: Sequence[PlacedJob], model: _Model) -> dict[int, float]:
    """Workers dealt to the ToRs in turn, each job beginning where the one before ended: even for each and for all."""
    fixed = {}
    for mid in network.mids:
        dealt = 0
        for job in jobs:
            workers = job.workers_in(mid)
            places = Counter((dealt + n) % network.tors for n in range(workers))
            dealt += workers
            for t in range(network.tors if workers else 0):
                fixed[model.columns["n", job.name, mid, t]] = float(places[t])
    return fixed


def _integrality(model: _Model) -> IntArray:
    return np.array([int(isinstance(key, tuple) and key[0] == "n") for key in model.columns], dtype=np.int64)


def _milp(model: _Model, low: Array, node_limit: int) -> OptimizeResult:
    cost = np.zeros(len(model.columns))
    cost[0] = 1.0
    return milp(
        cost,
        integrality=_integrality(model),
        bounds=Bounds(low, np.inf),
        constraints=model.constraint(),
        options={"node_limit": node_limit, "mip_rel_gap": _SAME},
    )


def _solve(
    model: _Model,
    low: Array,
    *,
    fixed: Mapping[int, float] | None = None,
    cost: Array | None = None,
    theta: float = np.inf,
) -> Array | None:
    """The linear programme with some columns fixed and theta bounded; least theta unless another cost is given."""
    below, above = low.copy(), np.full(len(model.columns), np.inf)
    above[0] = theta
    for column, value in (fixed or {}).items():
        below[column] = above[column] = value
    if cost is None:
        cost = np.zeros(len(model.columns))
        cost[0] = 1.0
    result = milp(cost, bounds=Bounds(below, above), constraints=model.constraint())
    return None if result.x is None else np.asarray(result.x)


def _theta(solution: Array | None) -> float:
    if solution is None:
        raise AssertionError("the relaxed programme always has a solution: a large enough theta")
    return float(solution[0])


def _shortest(model: _Model, low: Array, best: Array) -> Array:
    """Keep theta and the circuits; send the bytes over as few inter-module links as that allows."""
    fixed = {int(c): float(np.round(best[c])) for c in np.flatnonzero(_integrality(model))}
    cost = np.zeros(len(model.columns))
    for key, column in model.columns.items():
        if isinstance(key, tuple) and key[0] == "x":
            cost[column] = len(key[3]) - 1
    shortest = _solve(model, low, fixed=fixed, cost=cost, theta=float(best[0]) * (1 + _SAME))
    return best if shortest is None else shortest


def _counts(
    network: PSNet, jobs: Sequence[PlacedJob], model: _Model, solution: Array
) -> dict[JobModule, tuple[int, ...]]:
    return {
        (job.name, mid): tuple(
            round(float(solution[model.columns["n", job.name, mid, t]])) for t in range(network.tors)
        )
        for job in jobs
        for mid in job.workers
    }


def _entry(
    network: PSNet, jobs: Sequence[PlacedJob], model: _Model, solution: Array
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
    paths: Mapping[Pair, Sequence[ModulePath]], model: _Model, solution: Array
) -> dict[Pair, dict[ModulePath, float]]:
    out: dict[Pair, dict[ModulePath, float]] = {}
    for (a, b), choices in paths.items():
        amounts = {path: max(0.0, float(solution[model.columns["x", a, b, path]])) for path in choices}
        total = sum(amounts.values())
        out[a, b] = {path: amount / total for path, amount in amounts.items() if amount > 1e-9 * total}
    return out
