"""RANDOM (ATP) and AggTree as the paper's section IV-A runs them, and the rate that given routes sustain.

RANDOM: one random programmable spine per task, which all its flows cross. AggTree: capacities being equal it behaves
like ECMP on (possibly aggregated) flows: each leaf deals its flows out over distinct random next hops. Both ignore
pipelines; where one INP would receive flows that leave it differently they follow the first, as the hardware would.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random

from mlt.planners.aro.graph import Kind, TaskGraph, unfold
from mlt.planners.aro.instance import Instance
from mlt.planners.aro.routes import TaskPlan, WorkerRoute
from mlt.planners.aro.verify import verify

NextEdge = Callable[[int], int]


def fair_rates(instance: Instance, plans: Sequence[TaskPlan]) -> list[TaskPlan]:
    """Give overlaid tasks their max-min fair rates: all rise together, a full link freezes the tasks that cross it."""
    flows = verify(instance, [replace(plan, rate=1e-9) for plan in plans]).flows
    labels = [f"{plan.job}/{plan.task}" for plan in plans]
    room = {hop: instance.capacity[hop] for hop in flows}
    rate = dict.fromkeys(labels, 0.0)
    rising = set(labels)
    while rising:
        slope = {hop: sum(n for label, n in loads.items() if label in rising) for hop, loads in flows.items()}
        step = min(room[hop] / slope[hop] for hop in flows if slope[hop])
        for hop in flows:
            room[hop] -= step * slope[hop]
        for label in rising:
            rate[label] += step
        full = [hop for hop in flows if slope[hop] and room[hop] <= 1e-9 * instance.capacity[hop]]
        rising -= {label for hop in full for label in flows[hop]}
    return [replace(plan, rate=rate[label]) for plan, label in zip(plans, labels, strict=True)]


def _walk(graph: TaskGraph, choose: NextEdge) -> dict[str, WorkerRoute]:
    """Follow ``choose`` from each worker; the first flow through an INP decides for all that enter it."""
    onward: dict[int, tuple[int, ...]] = {graph.ps: (graph.ps,)}
    routes = {}
    for worker, entry in graph.entry.items():
        path = [entry]
        while path[-1] not in onward:
            path.append(int(graph.head[choose(path[-1])]))
        path += onward[path[-1]][1:]
        for place, node in enumerate(path):
            if graph.is_inp[node]:
                onward.setdefault(node, tuple(path[place:]))
        names = (graph.nodes[v].name for v in path if graph.nodes[v].kind is not Kind.INP)
        routes[worker] = WorkerRoute((worker, *names))
    return routes


def plan_random(instance: Instance, *, seed: int) -> list[TaskPlan]:
    """RANDOM: all flows of a task climb through one random programmable switch per tier, where there is one."""
    random = Random(seed)
    plans = []
    for job, task in instance.tasks:
        graph = unfold(instance, job, task)
        order = {v: random.random() for v in range(len(graph.nodes))}
        rank: dict[str, float] = {}
        for v, node in enumerate(graph.nodes):
            plain = not instance.switch[node.name].programmable if node.name in instance.switch else False
            rank.setdefault(node.name, order[v] + plain)

        def choose(v: int, graph: TaskGraph = graph, rank: dict[str, float] = rank) -> int:
            return int(min(graph.edges_out[v], key=lambda e: rank[graph.nodes[graph.head[e]].name]))

        plans.append(TaskPlan(job.name, task.name, task.ps, 1.0, _walk(graph, choose)))
    return fair_rates(instance, plans)


def plan_aggtree(instance: Instance, *, seed: int) -> list[TaskPlan]:
    """AggTree: each switch deals its flows out over its next hops in a random order of its own."""
    random = Random(seed)
    plans = []
    for job, task in instance.tasks:
        graph = unfold(instance, job, task)
        decks: dict[int, list[int]] = {}

        def choose(v: int, graph: TaskGraph = graph, decks: dict[int, list[int]] = decks) -> int:
            deck = decks.get(v)
            if not deck:
                deck = decks[v] = [int(e) for e in graph.edges_out[v]]
                random.shuffle(deck)
            return deck.pop()

        plans.append(TaskPlan(job.name, task.name, task.ps, 1.0, _walk(graph, choose)))
    return fair_rates(instance, plans)
