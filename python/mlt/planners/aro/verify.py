"""Independent check of routes against the instance alone; shares no code with the model, its graph or its flows.

It reads paths and rates as a network would. The links exist, paths climb and then descend, and are as short as an
up-down path can be. Each input pipeline sends a task's merged flow over one link only, and the traffic fits every link.
Loads come from flow identities carried along the paths, not from flow variables.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from mlt._shared.counts import count_of
from mlt.planners.aro.instance import Instance
from mlt.planners.aro.routes import TaskPlan

_TOLERANCE = 1e-6  # relative excess of a link's load that counts as rounding


@dataclass(frozen=True)
class Report:
    """Faults as text (none: the plan is valid) and, per directed link and task, the number of flows."""

    faults: tuple[str, ...]
    flows: Mapping[tuple[str, str], Mapping[str, int]]

    @property
    def ok(self) -> bool:
        return not self.faults


def verify(instance: Instance, plans: Sequence[TaskPlan]) -> Report:
    """Check all tasks together. Every task of the instance must be present, with a route for each worker."""
    faults = _coverage(instance, plans)
    flows: dict[tuple[str, str], dict[str, int]] = defaultdict(dict)
    for plan in plans:
        label = f"{plan.job}/{plan.task}"
        broken = [fault for worker, route in plan.routes.items() for fault in _path(instance, worker, route.path, plan)]
        faults += [f"{label}: {fault}" for fault in broken]
        if broken:
            continue
        carried, split = _carry(instance, plan)
        faults += [f"{label}: {fault}" for fault in split]
        for hop, identities in carried.items():
            flows[hop][label] = len(identities)
    rates = {f"{plan.job}/{plan.task}": plan.rate for plan in plans}
    for (a, b), loads in flows.items():
        load = sum(count * rates[label] for label, count in loads.items())
        capacity = instance.capacity[a, b]
        if load > capacity * (1 + _TOLERANCE):
            faults.append(f"link {a}->{b}: {load:.6g} Gbit/s on {capacity:.6g} Gbit/s ({dict(loads)} flows)")
    return Report(tuple(faults), dict(flows))


def _coverage(instance: Instance, plans: Sequence[TaskPlan]) -> list[str]:
    wanted = {(job.name, task.name): (set(job.workers), task.ps) for job in instance.jobs for task in job.tasks}
    given = {(plan.job, plan.task): plan for plan in plans}
    faults = [f"{job}/{task}: no routes" for job, task in wanted.keys() - given.keys()]
    faults += [f"{job}/{task}: not a task of the instance" for job, task in given.keys() - wanted.keys()]
    if len(given) != len(plans):
        faults.append("a task is planned twice")
    for key in wanted.keys() & given.keys():
        workers, ps = wanted[key]
        plan = given[key]
        if set(plan.routes) != workers:
            odd = sorted(workers ^ set(plan.routes))
            faults.append(f"{key[0]}/{key[1]}: routes and workers disagree about {', '.join(odd[:5])}")
        if plan.ps != ps:
            faults.append(f"{key[0]}/{key[1]}: routes lead to {plan.ps}, but the server is {ps}")
        if not plan.rate >= 0:
            faults.append(f"{key[0]}/{key[1]}: rate {plan.rate} is negative")
    return faults


def _path(instance: Instance, worker: str, path: Sequence[str], plan: TaskPlan) -> list[str]:
    """Faults of one path: ends, links, up-down order, length."""
    if len(path) < 3 or path[0] != worker or path[-1] != plan.ps:
        return [f"path {'-'.join(path)} does not lead from {worker} to {plan.ps}"]
    for a, b in pairwise(path):
        if (a, b) not in instance.capacity:
            return [f"worker {worker}: unknown link {a}-{b}"]
    tiers = [instance.tier(name) for name in path]
    top = tiers.index(max(tiers))
    climbs = all(x < y for x, y in pairwise(tiers[: top + 1]))
    descends = all(x > y for x, y in pairwise(tiers[top:]))
    if not (climbs and descends):
        return [f"worker {worker}: path {'-'.join(path)} is not up-down"]
    shortest = 2 * _meeting_tier(instance, worker, plan.ps) + 3
    if len(path) != shortest:
        return [f"worker {worker}: path of {count_of(len(path), 'node')}, the shortest up-down path has {shortest}"]
    return []


def _meeting_tier(instance: Instance, worker: str, ps: str) -> int:
    """Lowest tier at which a switch is above both the worker and the server."""
    left, right, tier = {instance.leaf_of[worker]}, {instance.leaf_of[ps]}, 0
    while not left & right:
        left, right = (
            {port.peer for name in side for port in instance.switch[name].ports if instance.tier(port.peer) == tier + 1}
            for side in (left, right)
        )
        tier += 1
        if not left or not right:
            return tier
    return tier


def _carry(instance: Instance, plan: TaskPlan) -> tuple[dict[tuple[str, str], set[str]], list[str]]:
    """Carry each worker's flow along its path; in an aggregating pipeline, it takes that pipeline's identity.

    Returns the identities on each directed link, and a fault for each merged flow with two next hops.
    """
    carried: dict[tuple[str, str], set[str]] = defaultdict(set)
    onward: dict[str, tuple[str, ...]] = {}
    faults = []
    for worker, route in plan.routes.items():
        identity = worker
        for place in range(len(route.path) - 1):
            here, following = route.path[place], route.path[place + 1]
            switch = instance.switch.get(here)
            if switch is not None and switch.programmable and place > 0:
                allowed = route.aggregators is None or here in route.aggregators
                if allowed:
                    identity = f"{here}#{switch.pipeline_of[route.path[place - 1]]}"
                    rest = route.path[place:]
                    if onward.setdefault(identity, rest) != rest:
                        faults.append(f"pipeline {identity} would have to send one flow along two paths")
            carried[here, following].add(identity)
    return carried, faults
