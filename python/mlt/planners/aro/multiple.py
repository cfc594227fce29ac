"""Several tasks and jobs together (SJMT, MJMT): routes, rates and a proven bound of the objective.

The bound comes first: every task alone (exact), then ``bounds`` over the rates. Its rates are the target. Tasks are
routed one after another in the remaining capacity, each spread as thinly as possible over links that others need. If
all fit, the objective equals the bound and the plan is proven optimal. If not, other orders are tried, then the joint
integer programme at the target rates. If that fails too, ``boxes`` looks for better routes and a lower bound over the
space of rates. The report contains the gap between the best routes and the bound.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

import numpy as np

from mlt.planners.aro.bounds import Objective, RateBound, best_rates, bound_rates, job_totals, rate_rows
from mlt.planners.aro.boxes import Search
from mlt.planners.aro.flow import flows_that_fit
from mlt.planners.aro.graph import FloatArray, IntArray, TaskGraph, unfold
from mlt.planners.aro.highs import Verdict
from mlt.planners.aro.instance import Instance
from mlt.planners.aro.joint import route_jointly
from mlt.planners.aro.routes import TaskPlan, generate_routes
from mlt.planners.aro.single import TaskSolution, routes_at, solve_task


@dataclass(frozen=True)
class Effort:
    """Limits of the search: seconds in total and of one joint programme; orders per target."""

    seconds: float = 60.0
    joint_seconds: float = 10.0
    orders: int = 8
    seed: int = 0


_LAST_SHARE = 0.2  # of the time, reserved for raising single tasks at the end


@dataclass(frozen=True, eq=False)
class Solution:
    """Plans and flows per edge in the order of ``instance.tasks``; ``value`` and ``bound`` are of the objective."""

    plans: tuple[TaskPlan, ...]
    flows: tuple[IntArray, ...]
    value: float
    bound: float
    seconds: float
    found_by: str

    @property
    def gap(self) -> float:
        """Relative distance to the proven bound."""
        return max(0.0, 1.0 - self.value / self.bound)

    @property
    def proven(self) -> bool:
        return self.gap <= 1e-6


class _Router:
    """Routes all tasks at given rates in the capacities of one instance."""

    def __init__(self, graphs: Sequence[TaskGraph], effort: Effort) -> None:
        self.graphs = graphs
        self.effort = effort
        self.random = Random(effort.seed)
        self.deadline = time.monotonic() + (1 - _LAST_SHARE) * effort.seconds
        size = len(graphs[0].links)
        users = np.zeros(size, dtype=np.int64)
        self.free = np.full(size, np.inf)
        for graph in self.graphs:
            real = ~graph.virtual
            np.add.at(users, graph.link[real], 1)
            self.free[graph.link[real]] = graph.capacity[real]
        self.shared = users > 1

    @property
    def left(self) -> float:
        return self.deadline - time.monotonic()

    def in_turn(self, rates: FloatArray, *, exact: bool) -> list[IntArray] | None:
        """Try several orders, the highest rates first, then at random."""
        order = sorted(range(len(self.graphs)), key=lambda i: -rates[i])
        for _ in range(self.effort.orders):
            found = self._one_order(rates, order, exact=exact)
            if found is not None or self.left <= 0:
                return found
            self.random.shuffle(order)
        return None

    def _one_order(self, rates: FloatArray, order: Sequence[int], *, exact: bool) -> list[IntArray] | None:
        free = self.free.copy()
        found: dict[int, IntArray] = {}
        for i in order:
            graph, rate = self.graphs[i], float(rates[i])
            capacity = np.where(graph.virtual, np.inf, free[graph.link])
            y = self._spread(graph, flows_that_fit(capacity, rate), exact=exact)
            if y is None:
                return None
            real = np.flatnonzero(~graph.virtual & (y > 0))
            free[graph.link[real]] -= y[real] * rate
            found[i] = y
        return [found[i] for i in range(len(self.graphs))]

    def _spread(self, graph: TaskGraph, fits: IntArray, *, exact: bool) -> IntArray | None:
        """Routes with the fewest flows on any shared link."""
        shared = ~graph.virtual & self.shared[graph.link]
        maximum = int(fits[shared].max()) if shared.any() else 0
        for cap in range(1, maximum):
            _, y = routes_at(graph, np.where(shared, np.minimum(fits, cap), fits), seconds=0.0, exact=False)
            if y is not None:
                return y
            if cap > 8:
                break
        return routes_at(graph, fits, seconds=min(10.0, max(self.left, 0.0)), exact=exact)[1]

    def jointly(self, rates: FloatArray) -> tuple[Verdict, list[IntArray] | None]:
        """All tasks in one integer programme."""
        return route_jointly(self.graphs, rates, seconds=max(0.0, min(self.left, self.effort.joint_seconds)))


def plan_routes(
    instance: Instance,
    *,
    objective: Objective | None = None,
    effort: Effort | None = None,
    graphs: Sequence[TaskGraph] | None = None,
) -> Solution:
    """Route every task of ``instance`` for the objective of equation 3 (equation 2 with one job).

    Args:
        graphs: graphs to use instead of the unfolded ones, as smaller ones; the bound then holds for those only.

    Raises:
        NoRoutesError: a task has no routes at all.
    """
    begin = time.monotonic()
    objective = objective or Objective()
    effort = effort or Effort()
    graphs = graphs or [unfold(instance, job, task) for job, task in instance.tasks]
    alone = [solve_task(graph, seconds=effort.seconds / 4) for graph in graphs]
    tops = [solution.bound for solution in alone]
    target = bound_rates(instance, graphs, tops, objective)
    router = _Router(graphs, effort)
    found, bound = _search(instance, router, target, objective, alone)
    plans = tuple(
        TaskPlan(job.name, task.name, task.ps, float(rate), generate_routes(graph, y), bound=top)
        for (job, task), graph, rate, y, top in zip(instance.tasks, graphs, found.rates, found.flows, tops, strict=True)
    )
    value = objective.value(instance, [plan.rate for plan in plans])
    return Solution(plans, tuple(found.flows), value, max(bound, value), time.monotonic() - begin, found.how)


@dataclass(frozen=True, eq=False)
class _Found:
    rates: FloatArray
    flows: list[IntArray]
    how: str


def _search(
    instance: Instance, router: _Router, target: RateBound, objective: Objective, alone: Sequence[TaskSolution]
) -> tuple[_Found, float]:
    """The best routes found and the bound, lowered where the search over boxes proved a lower one."""
    if len(alone) == 1:
        return _Found(np.array([alone[0].rate]), [alone[0].y], "alone"), target.value
    search = Search(instance, router.graphs, objective, seconds=router.left, seed=router.effort.seed)
    found = _at(router, target.rates, search)
    if found is not None:
        return found, target.value
    tops = [solution.bound for solution in alone]
    lowered = _best(instance, router, _lower(router, target.rates), objective)
    value = objective.value(instance, lowered.rates.tolist())
    bound = search.run(tops, value=value, bound=target.value, seconds=router.left)
    candidates = [lowered]
    if search.best is not None:
        candidates.append(_Found(search.best.rates, search.best.flows, "boxes"))
    router.deadline = max(router.deadline, time.monotonic()) + _LAST_SHARE * router.effort.seconds
    candidates = [_best(instance, router, _raise(instance, router, c, tops), objective) for c in candidates]
    return max(candidates, key=lambda c: objective.value(instance, c.rates.tolist())), bound


def _best(instance: Instance, router: _Router, found: _Found, objective: Objective) -> _Found:
    """The same flows at the best rates that they allow."""
    return replace(found, rates=best_rates(instance, router.graphs, found.flows, objective))


def _at(router: _Router, rates: FloatArray, search: Search) -> _Found | None:
    """Routes at exactly ``rates``, by the cheapest method that finds them; ``search`` may know that none exist."""
    for how, exact in (("in turn", False), ("in turn, exactly", True)):
        if exact and not search.may_route(rates):
            return None
        flows = router.in_turn(rates, exact=exact)
        if flows is not None:
            return _Found(rates, flows, how)
    _, flows = router.jointly(rates)
    return None if flows is None else _Found(rates, flows, "jointly")


def _lower(router: _Router, rates: FloatArray) -> _Found:
    """``rates`` scaled down until all tasks are routed in turn; at a low enough scale they always are."""
    low, high = 0.0, 1.0
    best: _Found | None = None
    while high - low > 0.002 or best is None:
        middle = (low + high) / 2
        flows = router.in_turn(rates * middle, exact=False)
        if flows is None:
            high = middle
        else:
            low, best = middle, _Found(rates * middle, flows, "scaled")
        if router.left <= 0 and best is not None:
            break
    return best


def _raise(instance: Instance, router: _Router, found: _Found, tops: Sequence[float]) -> _Found:
    """Raise one task after another, those of the poorest jobs first, to the highest rate whose routes are found."""
    rows = rate_rows(instance, router.graphs)
    owners = [job.name for job, _ in instance.tasks]
    changed = True
    while changed and router.left > 0:
        changed = False
        totals = dict(zip((job.name for job in instance.jobs), job_totals(instance, found.rates.tolist()), strict=True))
        for i in sorted(range(len(tops)), key=lambda i: (totals[owners[i]], found.rates[i])):
            levels = [tops[i]] + [instance.fastest_gbps / k for k in range(1, 13)]
            for rate in sorted({r for r in levels if found.rates[i] * 1.005 < r <= tops[i] * (1 + 1e-9)}, reverse=True):
                trial = found.rates.copy()
                trial[i] = rate
                fits = all(sum(a * trial[j] for j, a in row.items()) <= limit * (1 + 1e-9) for row, limit in rows)
                flows = router.in_turn(trial, exact=False) if fits and router.left > 0 else None
                if flows is not None:
                    found, changed = _Found(trial, flows, "raised"), True
                    break
            if changed:
                break
    return found
