"""The multi-commodity programme of ``routing``, as columns and rows; ``routing`` explains them.

Bytes are in units of the largest job, seconds in units of one such unit on a worker's link, so that numbers stay near 1
whatever the network's rate.
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

from mlt.planners.psnet.jobs import PlacedJob
from mlt.planners.psnet.paths import ModulePath, disjoint_paths, shortest_paths
from mlt.planners.psnet.psnet import PSNet
from mlt.planners.psnet.wiring import Pair

Array: TypeAlias = NDArray[np.float64]
IntArray: TypeAlias = NDArray[np.int64]

#: Relative difference below which two times are the same.
SAME = 1e-7

#: Of branch and bound; a count, not a time, so that the same input gives the same plan on any host.
NODE_LIMIT = 5000


@dataclass
class Model:
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


def demands(jobs: Sequence[PlacedJob]) -> dict[Pair, float]:
    """Bytes that all jobs push from one module to another, by (from, to)."""
    out: dict[Pair, float] = {}
    for job in jobs:
        for a in job.workers:
            for b in job.servers:
                if a != b:
                    out[a, b] = out.get((a, b), 0.0) + job.sent_bytes(a, b)
    return dict(sorted(out.items()))


def build_model(network: PSNet, jobs: Sequence[PlacedJob], unit_bytes: float, unit_rate: float) -> Model:
    model = Model()
    tors = range(network.tors)
    into: dict[tuple[int, int], dict[int, float]] = {}
    out_of: dict[tuple[int, int], dict[int, float]] = {}
    ports: dict[tuple[int, int], dict[int, float]] = {}
    for job in jobs:
        u = job.share_bytes / unit_bytes
        for mid in job.modules:
            nic = network.module(mid).server_bits_per_second / 8 / unit_rate
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
                    terms = {0: -nic}
                    terms |= {here[t]: u} if here else {}
                    terms |= {entering[t]: 1.0} if entering else {}
                    model.row(terms, high=0.0)
                if entering:
                    into.setdefault((mid, t), {0: -nic})[entering[t]] = float(servers)
                if here:
                    ports.setdefault((mid, t), {})[here[t]] = 1.0
                    if job.server_count > servers:
                        out_of.setdefault((mid, t), {0: -nic})[here[t]] = (job.server_count - servers) * u
    for terms in (*into.values(), *out_of.values()):
        model.row(terms, high=0.0)
    for (mid, _), terms in ports.items():
        model.row(terms, high=network.module(mid).tor_downlinks)
    return model


def add_paths(
    network: PSNet,
    jobs: Sequence[PlacedJob],
    trunks: dict[Pair, int],
    model: Model,
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


def lower_bounds(network: PSNet, jobs: Sequence[PlacedJob], model: Model, unit_bytes: float, unit_rate: float) -> Array:
    """Lower bounds of the columns.

    theta is at least the time of a worker's link. It is also at least the time of the ToR with the most workers of a
    job, ceil(w / R) of them. The relaxed model needs this second bound to be tight where R does not divide w.
    """
    low = np.zeros(len(model.columns))
    for job in jobs:
        for mid in job.workers:
            link = network.module(mid).worker_bits_per_second / 8 / unit_rate
            nic = network.module(mid).server_bits_per_second / 8 / unit_rate
            maximum = ceil(job.workers_in(mid) / network.tors) * job.share_bytes / unit_bytes
            local, remote = bool(job.servers_in(mid)), job.server_count - job.servers_in(mid)
            low[0] = max(low[0], job.size_bytes / unit_bytes / link, maximum * local / nic, maximum * remote / nic)
    return low


def even_counts(network: PSNet, jobs: Sequence[PlacedJob], model: Model) -> dict[int, float]:
    """Workers assigned to the ToRs in turn; each job begins where the previous one ended: even per job and in total."""
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


def integrality(model: Model) -> IntArray:
    return np.array([int(isinstance(key, tuple) and key[0] == "n") for key in model.columns], dtype=np.int64)


def _theta_only(model: Model) -> Array:
    """The cost of which theta is the only term."""
    cost = np.zeros(len(model.columns))
    cost[0] = 1.0
    return cost


def solve_integer(model: Model, low: Array) -> OptimizeResult:
    return milp(
        _theta_only(model),
        integrality=integrality(model),
        bounds=Bounds(low, np.inf),
        constraints=model.constraint(),
        options={"node_limit": NODE_LIMIT, "mip_rel_gap": SAME},
    )


def solve(model: Model, low: Array, *, fixed: Mapping[int, float] | None = None) -> Array | None:
    """Min theta of the linear programme with some columns fixed."""
    below, above = low.copy(), np.full(len(model.columns), np.inf)
    for column, value in (fixed or {}).items():
        below[column] = above[column] = value
    result = milp(_theta_only(model), bounds=Bounds(below, above), constraints=model.constraint())
    return None if result.x is None else np.asarray(result.x)


def theta_of(solution: Array | None) -> float:
    if solution is None:
        raise AssertionError("the relaxed programme always has a solution: a large enough theta")
    return float(solution[0])
