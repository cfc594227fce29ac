"""GRID as ARO's section IV-A runs it on a leaf-spine network: one aggregator (or none) per worker, merged at most once.

Candidates of a worker are its own leaf, every programmable spine (if the worker is not under the PS's leaf) and the
PS's leaf, plus the PS itself. A relaxed linear programme chooses, each worker is rounded at random by its fractions,
routes that balance link loads follow, and only then do pipelines count. Two readings of the programme:

* ``rate``: maximise the common rate f under switch capacity (3200 Gbit/s of input) and the PS's link; with t = 1/f it
  is linear.
* ``line-rate``: workers send at line rate, so a switch takes 3200 / 100 = 32 of them; minimise the flows at the PS.

How fractions become choices is open too (``grid_rounding``); rounding at random gives single switches more workers than
their capacity, which ``enforce`` undoes.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from random import Random
from typing import Literal

import numpy as np

from mlt.planners.aro.flow import maximum_flow
from mlt.planners.aro.highs import Rows, solve
from mlt.planners.aro.instance import Instance, InstanceError, Job, Task
from mlt.planners.aro.routes import TaskPlan, WorkerRoute
from studies.aro.baselines import fair_rates
from studies.aro.grid_rounding import DIRECT as _DIRECT
from studies.aro.grid_rounding import Rounding, enforce_capacity, round_shares

Reading = Literal["rate", "line-rate"]
SWITCH_GBPS = 3200.0


@dataclass(frozen=True)
class _Fabric:
    """GRID's view of one task: workers by leaf, the PS's leaf, and spines by name."""

    by_leaf: dict[str, list[str]]
    ps_leaf: str
    spines: list[str]

    def candidates(self, instance: Instance, leaf: str) -> list[str]:
        found = [leaf] if instance.switch[leaf].programmable else []
        if leaf != self.ps_leaf:
            found += [spine for spine in self.spines if instance.switch[spine].programmable]
            found += [self.ps_leaf] if instance.switch[self.ps_leaf].programmable else []
        return [*found, _DIRECT]


def plan_grid(
    instance: Instance, *, seed: int, reading: Reading = "rate", rounding: Rounding = "draw", enforce: bool = False
) -> list[TaskPlan]:
    """Plan every task by itself, overlay them and give max-min fair rates.

    Args:
        enforce: switches merge no more workers than ``SWITCH_GBPS`` holds at line rate; the others pass unmerged.

    Raises:
        InstanceError: the network has more than two tiers.
    """
    if max(switch.tier for switch in instance.switches) > 1:
        raise InstanceError("GRID is defined here for leaf-spine networks; this one has more than two tiers")
    random = Random(seed)
    plans = []
    for job, task in instance.tasks:
        fabric = _fabric(instance, job, task)
        chosen = round_shares(fabric.by_leaf, _relaxation(instance, fabric, task, reading), random, rounding=rounding)
        if enforce:
            chosen = enforce_capacity(chosen, int(SWITCH_GBPS / _line_gbps(instance, fabric)), random)
        routes = _routes(instance, fabric, task, chosen)
        plans.append(TaskPlan(job.name, task.name, task.ps, 1.0, routes))
    return fair_rates(instance, plans)


def _fabric(instance: Instance, job: Job, task: Task) -> _Fabric:
    by_leaf: dict[str, list[str]] = defaultdict(list)
    for worker in job.workers:
        by_leaf[instance.leaf_of[worker]].append(worker)
    spines = [switch.name for switch in instance.switches if switch.tier == 1]
    return _Fabric(dict(by_leaf), instance.leaf_of[task.ps], spines)


def _line_gbps(instance: Instance, fabric: _Fabric) -> float:
    return max(instance.capacity[w, leaf] for leaf, workers in fabric.by_leaf.items() for w in workers)


def _relaxation(instance: Instance, fabric: _Fabric, task: Task, reading: Reading) -> dict[str, dict[str, float]]:
    """Leaf -> aggregator -> number of its workers (fractional); workers of one leaf are alike."""
    pairs = [(leaf, a) for leaf in fabric.by_leaf for a in fabric.candidates(instance, leaf)]
    aggregators = sorted({a for _, a in pairs if a != _DIRECT})
    place = {a: len(pairs) + i for i, a in enumerate(aggregators)}
    slow = len(pairs) + len(aggregators)  # t = 1 / f, or unused
    column = {pair: i for i, pair in enumerate(pairs)}
    rows = Rows()
    for leaf, workers in fabric.by_leaf.items():
        own = [column[leaf, a] for a in fabric.candidates(instance, leaf)]
        rows.add(np.array(own), np.ones(len(own)), len(workers), len(workers))
    for (leaf, a), c in column.items():
        if a != _DIRECT:
            rows.add(np.array([c, place[a]]), np.array([1.0, -len(fabric.by_leaf[leaf])]), -np.inf, 0.0)
    line = _line_gbps(instance, fabric)
    for a in aggregators:
        users = [column[leaf, b] for leaf, b in pairs if b == a]
        if reading == "rate":
            rows.add(np.array([*users, slow]), np.array([1.0] * len(users) + [-SWITCH_GBPS]), -np.inf, 0.0)
        else:
            rows.add(np.array(users), np.ones(len(users)), -np.inf, SWITCH_GBPS / line)
    at_ps = np.array([*place.values(), *(column[pair] for pair in pairs if pair[1] == _DIRECT)])
    cost = np.zeros(slow + 1)
    if reading == "rate":
        ps_gbps = instance.capacity[fabric.ps_leaf, task.ps]
        rows.add(np.append(at_ps, slow), np.append(np.ones(len(at_ps)), -ps_gbps), -np.inf, 0.0)
        cost[slow] = 1.0
    else:
        cost[at_ps] = 1.0
    upper = np.full(slow + 1, np.inf)
    upper[list(place.values())] = 1.0
    answer = solve(cost, np.zeros(slow + 1), upper, np.zeros(slow + 1, dtype=bool), rows, seconds=60.0)
    if answer.x is None:
        raise InstanceError(f"task {task.name!r}: GRID's relaxed programme has no solution")
    shares: dict[str, dict[str, float]] = defaultdict(dict)
    for (leaf, a), c in column.items():
        shares[leaf][a] = max(float(answer.x[c]), 0.0)
    return shares


def _routes(instance: Instance, fabric: _Fabric, task: Task, chosen: dict[str, str]) -> dict[str, WorkerRoute]:
    """Fix the spine of each flow: the aggregating spine, else whatever balances the links, pipelines unseen."""
    d = fabric.ps_leaf
    preset: Counter[tuple[str, str]] = Counter()
    merged_at: set[str] = set()
    movable: dict[str, list[list[str]]] = defaultdict(list)  # leaf -> groups of workers that travel as one flow
    for leaf, workers in fabric.by_leaf.items():
        if leaf == d:
            continue
        own = [worker for worker in workers if chosen[worker] == leaf]
        movable[leaf] += [own] if own else []
        for worker in workers:
            aggregator = chosen[worker]
            if aggregator in fabric.spines:
                preset[leaf, aggregator] += 1
                merged_at.add(aggregator)
            elif aggregator != leaf:
                movable[leaf].append([worker])
    spine_of = _balance(fabric, preset, merged_at, movable)
    routes = {}
    for leaf, workers in fabric.by_leaf.items():
        for worker in workers:
            aggregator = chosen[worker]
            merging = frozenset({aggregator} if aggregator != _DIRECT else ())
            if leaf == d:
                routes[worker] = WorkerRoute((worker, d, task.ps), merging)
            else:
                spine = aggregator if aggregator in fabric.spines else spine_of[worker]
                routes[worker] = WorkerRoute((worker, leaf, spine, d, task.ps), merging)
    return routes


def _balance(
    fabric: _Fabric, preset: Counter[tuple[str, str]], merged_at: set[str], movable: dict[str, list[list[str]]]
) -> dict[str, str]:
    """Smallest worst link load for the movable flows, as an integral flow; exact, since capacities are equal."""
    leaves, spines = list(movable), fabric.spines
    total = sum(len(groups) for groups in movable.values())
    up = [(i, len(leaves) + j) for i in range(len(leaves)) for j in range(len(spines))]
    source, sink = len(leaves) + len(spines), len(leaves) + len(spines) + 1
    arcs = [*((source, i) for i in range(len(leaves))), *((v, sink) for v in range(len(leaves), source)), *up]
    tails, heads = (np.array(side) for side in zip(*arcs, strict=True))
    level = max([1, *preset.values()])
    while True:
        limits = [len(movable[leaf]) for leaf in leaves]
        limits += [level - (spine in merged_at) for spine in spines]
        limits += [level - preset[leaves[i], spines[j - len(leaves)]] for i, j in up]
        value, flow = maximum_flow(tails, heads, np.array(limits), nodes=sink + 1, source=source, sink=sink)
        if value == total:
            break
        level += 1
    sent = dict(zip(arcs, flow, strict=True))
    found: dict[str, str] = {}
    for i, leaf in enumerate(leaves):
        slots = [spine for j, spine in enumerate(spines) for _ in range(int(sent[i, len(leaves) + j]))]
        for group, spine in zip(movable[leaf], slots, strict=True):
            found.update(dict.fromkeys(group, spine))
    return found
