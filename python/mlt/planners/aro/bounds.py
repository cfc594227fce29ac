"""Upper bounds for several tasks together: a small linear programme over the rates alone.

Its rows are necessary for any routes: each task's proven optimum when alone, the load of every worker's link, the load
of the forced flows on each PS's link, and the output of each switch that workers or forced INPs feed. Its optimum
bounds equations 2 and 3, and ``multiple`` then tries to route its rates.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mlt.planners.aro.graph import FloatArray, IntArray, TaskGraph
from mlt.planners.aro.highs import Rows, solve
from mlt.planners.aro.instance import Instance


@dataclass(frozen=True)
class Objective:
    """Equation 3: ``min_s beta_s sum r + mu sum_s beta_s sum r``; with one job, equation 2 up to a factor."""

    mu: float = 0.001

    def value(self, instance: Instance, rates: Sequence[float]) -> float:
        """Value for rates in the order of ``instance.tasks``."""
        totals = job_totals(instance, rates)
        weighted = [job.weight * total for job, total in zip(instance.jobs, totals, strict=True)]
        return min(weighted) + self.mu * sum(weighted)


def job_totals(instance: Instance, rates: Sequence[float]) -> list[float]:
    """Sum of the task rates of each job."""
    totals = dict.fromkeys((job.name for job in instance.jobs), 0.0)
    for (job, _), rate in zip(instance.tasks, rates, strict=True):
        totals[job.name] += rate
    return list(totals.values())


@dataclass(frozen=True)
class RateBound:
    """Proven upper bound of the objective and one vector of rates that attains it in the relaxation."""

    value: float
    rates: FloatArray


def rate_rows(
    instance: Instance, graphs: Sequence[TaskGraph], width: IntArray | None = None
) -> list[tuple[dict[int, float], float]]:
    """Necessary conditions ``sum_i a_i r_i <= b`` as (coefficients by task index, b).

    ``width``: number of parallel links behind each link of bundled graphs.
    """
    found: list[tuple[dict[int, float], float]] = []
    at_worker: dict[str, list[int]] = defaultdict(list)
    at_ps: dict[str, dict[int, float]] = defaultdict(dict)
    leaving: dict[str, dict[int, float]] = defaultdict(dict)
    room: dict[str, dict[int, float]] = defaultdict(dict)
    for i, graph in enumerate(graphs):
        for worker in graph.entry:
            at_worker[worker].append(i)
        last = graph.edges_in[graph.ps]
        at_ps[graph.nodes[graph.ps].name][i] = float(max(1, graph.sources[graph.tail[last]].sum()))
        for v in np.flatnonzero(graph.sources).tolist():
            name = graph.nodes[v].name
            if v not in graph.tail[last]:
                leaving[name][i] = float(graph.sources[v])
                for e in graph.edges_out[v].tolist():
                    link = int(graph.link[e])
                    room[name][link] = float(graph.capacity[e]) * (1 if width is None else int(width[link]))
    narrowest: dict[tuple[int, ...], float] = {}
    for worker, tasks in at_worker.items():
        gbps = instance.capacity[worker, instance.leaf_of[worker]]
        narrowest[tuple(tasks)] = min(gbps, narrowest.get(tuple(tasks), gbps))
    found += [(dict.fromkeys(tasks, 1.0), gbps) for tasks, gbps in narrowest.items()]
    for host, loads in at_ps.items():
        found.append((loads, instance.capacity[instance.leaf_of[host], host]))
    for name, loads in leaving.items():
        found.append((loads, sum(room[name].values())))
    return found


def bound_rates(
    instance: Instance, graphs: Sequence[TaskGraph], alone: Sequence[float], objective: Objective
) -> RateBound:
    """Solve the relaxation. ``alone[i]`` is a proven upper bound of task i's rate.

    Among the optimal rate vectors it returns one in which each job's largest share of ``alone`` is small. That vector
    treats the servers of a job alike and leaves the most capacity for routing. A rate may be zero if another server can
    take it all.
    """
    tasks = len(alone)
    rows = Rows()
    for coefficients, limit in rate_rows(instance, graphs):
        rows.add(np.array(list(coefficients)), np.array(list(coefficients.values())), -np.inf, limit)
    worst, share = tasks, tasks + 1  # columns: rates, the smallest weighted job, each job's largest share
    size = tasks + 1 + len(instance.jobs)
    owners = [[i for i, (owner, _) in enumerate(instance.tasks) if owner.name == job.name] for job in instance.jobs]
    cost = np.zeros(size)
    for job, owned in zip(instance.jobs, owners, strict=True):
        members = np.array(owned)
        cost[members] = -objective.mu * job.weight
        values = np.append(np.full(len(members), job.weight), -1.0)
        rows.add(np.append(members, worst), values, 0.0, np.inf)
    cost[worst] = -1.0
    upper = np.append(np.array(alone), np.full(size - tasks, np.inf))
    integer = np.zeros(size, dtype=bool)
    first = solve(cost, np.zeros(size), upper, integer, rows, seconds=60.0)
    if first.x is None:
        raise RuntimeError("the relaxation over rates has no solution; zero rates always fit, so this is a defect")
    value = -first.bound
    rows.add(np.arange(tasks + 1), cost[: tasks + 1], -np.inf, -value + 1e-9 * max(1.0, abs(value)))
    for j, owned in enumerate(owners):
        for i in owned:
            rows.add(np.array([i, share + j]), np.array([1.0 / alone[i], -1.0]), -np.inf, 0.0)
    tie = np.zeros(size)
    tie[share:] = 1.0
    second = solve(tie, np.zeros(size), upper, integer, rows, seconds=60.0)
    x = first.x if second.x is None else second.x
    rates = np.maximum(x[:tasks], 0.0)
    tops = np.array(alone)
    return RateBound(value, np.where(rates > tops * (1 - 1e-7), tops, rates))


def best_rates(
    instance: Instance, graphs: Sequence[TaskGraph], flows: Sequence[IntArray], objective: Objective
) -> FloatArray:
    """The best rates for given flows: a linear programme over the load of every link."""
    tasks = len(graphs)
    load: dict[int, dict[int, float]] = defaultdict(dict)
    room: dict[int, float] = {}
    rows = Rows()
    upper = np.full(tasks + 1, np.inf)
    for i, (graph, y) in enumerate(zip(graphs, flows, strict=True)):
        upper[i] = graph.access_gbps
        for e in np.flatnonzero(~graph.virtual & (y > 0)).tolist():
            load[int(graph.link[e])][i] = float(y[e])
            room[int(graph.link[e])] = float(graph.capacity[e])
    for link, loads in load.items():
        rows.add(np.array(list(loads)), np.array(list(loads.values())), -np.inf, room[link])
    for coefficients, limit in rate_rows(instance, graphs):  # contains the workers' own links
        rows.add(np.array(list(coefficients)), np.array(list(coefficients.values())), -np.inf, limit)
    cost = np.zeros(tasks + 1)
    cost[tasks] = -1.0
    for job in instance.jobs:
        members = [i for i, (owner, _) in enumerate(instance.tasks) if owner.name == job.name]
        cost[members] = -objective.mu * job.weight
        rows.add(np.array([*members, tasks]), np.array([job.weight] * len(members) + [-1.0]), 0.0, np.inf)
    answer = solve(cost, np.zeros(tasks + 1), upper, np.zeros(tasks + 1, dtype=bool), rows, seconds=60.0)
    if answer.x is None:
        raise RuntimeError("no rates fit the flows; zero rates always do, so this is a defect")
    return np.maximum(answer.x[:tasks], 0.0)
