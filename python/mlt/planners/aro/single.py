"""One task alone (SJST): the highest rate at which its routes exist, with proof.

At rate r a link carries at most ``floor(b / r)`` flows, so only rates ``b / k`` matter and feasibility is monotone in
r: the problem is an integer min-max. The search starts at a relaxation's bound and raises the number of flows per link.
Each step looks for routes, first with guessed open pipelines and a maximum flow. If no guess fits, an integer programme
follows, whose only integers are the open pipelines; it proves infeasibility or gives routes. So the first feasible step
is the optimum.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from mlt.planners.aro.flow import drop_idle, flows_that_fit, relaxed_flow, route_flow
from mlt.planners.aro.graph import FloatArray, IntArray, TaskGraph
from mlt.planners.aro.highs import Rows, Verdict, solve
from mlt.planners.aro.joint import add_task, edge_limits
from mlt.planners.aro.pipelines import grow, guesses


@dataclass(frozen=True, eq=False)
class TaskSolution:
    """Routes of one task as flows per edge, its rate and the proven upper bound of the rate (Gbit/s)."""

    rate: float
    bound: float
    y: IntArray
    programmes: int
    seconds: float

    @property
    def proven(self) -> bool:
        return self.rate >= self.bound * (1 - 1e-9)


class NoRoutesError(ValueError):
    """No routes exist at all (no capacity left, or a pruned graph lost its paths)."""


def candidate_rates(graph: TaskGraph) -> FloatArray:
    """All rates at which some link's ``floor(b / r)`` changes, descending, none above the workers' own links."""
    capacities = np.unique(graph.capacity[~graph.virtual])
    maximum = int(graph.sources.sum())
    capacities = capacities[capacities > 1e-9]
    rates = np.unique((capacities[:, None] / np.arange(1, maximum + 1)).ravel())[::-1]
    rates = rates[rates < graph.access_gbps]
    return np.concatenate([[graph.access_gbps], rates])


def routes_at(
    graph: TaskGraph, fits: IntArray, *, seconds: float, exact: bool = True
) -> tuple[Verdict, IntArray | None]:
    """Routes that put at most ``fits[e]`` flows on edge ``e``, or a proof (INFEASIBLE) that none exist.

    Without ``exact`` only guesses are tried; their failure is UNKNOWN.
    """
    if relaxed_flow(graph, fits) is None:
        return Verdict.INFEASIBLE, None
    for opened in guesses(graph, fits):
        y = route_flow(graph, fits, opened)
        if y is not None:
            return Verdict.FEASIBLE, drop_idle(graph, y)
    y = grow(graph, fits)
    if y is not None:
        return Verdict.FEASIBLE, drop_idle(graph, y)
    if not exact:
        return Verdict.UNKNOWN, None
    return _programme(graph, fits, seconds)


def _programme(graph: TaskGraph, fits: IntArray, seconds: float) -> tuple[Verdict, IntArray | None]:
    """Choose the open INPs by mixed-integer programme; the flows are then integral without being integer variables."""
    free = graph.is_inp & ~graph.forced
    lower, upper = edge_limits(graph, fits)
    rows = Rows()
    add_task(rows, graph, upper, 0)
    integer = graph.virtual & free[graph.tail]
    answer = solve(np.zeros(len(lower)), lower, upper, integer, rows, seconds=seconds)
    if answer.x is None:
        return answer.verdict, None
    opened = graph.forced.copy()
    chosen = np.flatnonzero(integer & (answer.x > 0.5))
    opened[graph.tail[chosen]] = True
    y = route_flow(graph, fits, opened)
    if y is None:
        return Verdict.UNKNOWN, None
    return Verdict.FEASIBLE, drop_idle(graph, y)


def solve_task(graph: TaskGraph, *, seconds: float = 60.0) -> TaskSolution:
    """The optimum of equation 1 for ``graph`` alone.

    Args:
        seconds: time limit; past it ``bound`` may exceed ``rate``.

    Raises:
        NoRoutesError: no rate is feasible.
    """
    begin = time.monotonic()
    rates = candidate_rates(graph)
    low, high = 0, len(rates)
    while low < high:  # first rate the relaxation allows
        middle = (low + high) // 2
        fits = flows_that_fit(graph.capacity, float(rates[middle]))
        if relaxed_flow(graph, fits) is None:
            low = middle + 1
        else:
            high = middle
    bound: float | None = None
    programmes = 0
    for rate in rates[low:]:
        fits = flows_that_fit(graph.capacity, float(rate))
        left = seconds - (time.monotonic() - begin)
        verdict, y = routes_at(graph, fits, seconds=max(left, 0.0), exact=False)
        if verdict is Verdict.UNKNOWN and left > 0:
            programmes += 1
            verdict, y = routes_at(graph, fits, seconds=left)
        if verdict is not Verdict.INFEASIBLE and bound is None:
            bound = float(rate)
        if y is not None:
            assert bound is not None
            return TaskSolution(float(rate), bound, y, programmes, time.monotonic() - begin)
    raise NoRoutesError(f"task {graph.job}/{graph.task}: no routes fit the capacities left, at any rate")
