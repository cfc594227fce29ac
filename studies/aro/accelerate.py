"""The paper's search-space reductions (section III-C): APP and SRO prune task graphs, QSR quantises rates.

Where the text leaves room: a group of alternative aggregators (AAs) is every programmable switch of one tier that the
same worker leaves can reach, leaves themselves excluded; APP keeps at least one AA of a group; SRO removes what its
first stage left unused only among AAs, never the pipelines of the PS's own leaf, and is skipped where programmable
switches alone do not connect the workers. The exact search of ``mlt.planners.aro`` does not need them; ``reductions``
measures their loss and gain.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from statistics import pvariance

import numpy as np

from mlt.planners.aro.bounds import Objective
from mlt.planners.aro.graph import IntArray, Kind, TaskGraph, unfold
from mlt.planners.aro.instance import Instance
from mlt.planners.aro.multiple import Effort, Solution, plan_routes
from mlt.planners.aro.single import NoRoutesError
from studies.aro.quantisation import Quantisation


@dataclass(frozen=True, kw_only=True)
class Accelerations:
    """The choice among the three. ``app_share`` is alpha, ``qsr_levels`` is N; None and False turn one off."""

    sro: bool = False
    app_share: float | None = None
    qsr_levels: int | None = None

    def __post_init__(self) -> None:
        if self.app_share is not None and not 0 < self.app_share <= 1:
            raise ValueError(f"APP keeps a share of the aggregators: {self.app_share} is not in (0, 1]")
        if self.qsr_levels is not None and self.qsr_levels < 1:
            raise ValueError(f"QSR needs at least one level, not {self.qsr_levels}")

    def quantisation(self, instance: Instance) -> Quantisation | None:
        return None if self.qsr_levels is None else Quantisation(self.qsr_levels, instance.fastest_gbps)


ALL = Accelerations(sro=True, app_share=0.6, qsr_levels=100)


def alternatives(instance: Instance, graph: TaskGraph) -> list[list[str]]:
    """AA groups of one task: names of interchangeable programmable switches above the leaves, in instance order."""
    reach: list[frozenset[str]] = [frozenset()] * len(graph.nodes)
    groups: dict[tuple[int, frozenset[str]], list[str]] = defaultdict(list)
    for v in _topological(graph):
        found = {graph.nodes[v].name} if graph.supply[v] else set()
        for e in graph.edges_in[v]:
            found |= reach[graph.tail[e]]
        reach[v] = frozenset(found)
        node = graph.nodes[v]
        if node.kind is Kind.OP and instance.switch[node.name].tier > 0:
            groups[instance.switch[node.name].tier, reach[v]].append(node.name)
    order = {switch.name: place for place, switch in enumerate(instance.switches)}
    return [sorted(group, key=order.__getitem__) for group in groups.values()]


def _topological(graph: TaskGraph) -> list[int]:
    waiting = np.array([len(edges) for edges in graph.edges_in])
    ready = np.flatnonzero(waiting == 0).tolist()
    order: list[int] = []
    while ready:
        v = ready.pop()
        order.append(v)
        for e in graph.edges_out[v]:
            head = int(graph.head[e])
            waiting[head] -= 1
            if waiting[head] == 0:
                ready.append(head)
    return order


def scores(graph: TaskGraph) -> dict[str, list[int]]:
    """Programmable switch -> the most flows each of its INPs may receive (figure 6)."""
    flows = np.zeros(len(graph.nodes), dtype=np.int64)
    found: dict[str, list[int]] = defaultdict(list)
    for v in _topological(graph):
        node = graph.nodes[v]
        into = int(graph.supply[v] + flows[graph.tail[graph.edges_in[v]]].sum())
        flows[v] = min(into, 1) if node.kind is Kind.INP else into
        if node.kind is Kind.INP:
            found[node.name].append(into)
    return found


def prune(graph: TaskGraph, drop: Collection[int]) -> TaskGraph | None:
    """``graph`` without nodes ``drop`` and without the dead ends that result; None if a worker is cut off."""
    alive = np.ones(len(graph.nodes), dtype=bool)
    alive[list(drop)] = False
    while True:
        keep = alive[graph.tail] & alive[graph.head]
        onward = np.zeros(len(graph.nodes), dtype=bool)
        onward[graph.tail[keep]] = True
        inward = graph.supply > 0
        inward[graph.head[keep]] = True
        useful = alive & inward & onward
        useful[graph.ps] = True
        if np.array_equal(useful, alive):
            break
        alive = useful
    if not alive[list(graph.entry.values())].all():
        return None
    number = np.cumsum(alive) - 1
    return TaskGraph(
        job=graph.job,
        task=graph.task,
        nodes=tuple(node for node, kept in zip(graph.nodes, alive, strict=True) if kept),
        tail=number[graph.tail[keep]],
        head=number[graph.head[keep]],
        capacity=graph.capacity[keep],
        link=graph.link[keep],
        links=graph.links,
        entry={worker: int(number[v]) for worker, v in graph.entry.items()},
        ps=int(number[graph.ps]),
        access_gbps=graph.access_gbps,
    )


def prune_aggregators(instance: Instance, graphs: Sequence[TaskGraph], share: float) -> list[TaskGraph]:
    """APP: each task keeps ``floor(share n)`` AAs of each group, evenly scored ones first, dealt out in turn."""
    taken: set[str] = set()
    pruned = []
    for graph in graphs:
        score = scores(graph)
        drop: set[str] = set()
        for group in alternatives(instance, graph):
            ranked = sorted(group, key=lambda name: pvariance(score[name]) * len(score[name]))
            keep: list[str] = []
            while len(keep) < max(1, int(share * len(group) + 1e-9)):
                fresh = [name for name in ranked if name not in taken and name not in keep]
                if not fresh:
                    taken -= set(group)
                    continue
                keep.append(fresh[0])
                taken.add(fresh[0])
            drop |= set(group) - set(keep)
        kept = prune(graph, [v for v, node in enumerate(graph.nodes) if node.name in drop])
        pruned.append(graph if kept is None else kept)
    return pruned


def only_programmable(instance: Instance, graph: TaskGraph) -> TaskGraph | None:
    """SRO's first stage: the graph without common switches above the leaves, None if that cuts a worker off."""
    return prune(
        graph, [v for v, node in enumerate(graph.nodes) if node.kind is Kind.CS and instance.switch[node.name].tier > 0]
    )


def drop_unused(instance: Instance, graph: TaskGraph, stage: TaskGraph, y: IntArray) -> TaskGraph:
    """SRO's second stage: ``graph`` without the AA pipelines that ``y`` on the first stage's graph leaves idle."""
    used = {stage.nodes[stage.tail[e]] for e in np.flatnonzero(stage.virtual & (y > 0))}
    names = {name for group in alternatives(instance, graph) for name in group}
    idle = [
        v
        for v, node in enumerate(graph.nodes)
        if node.kind is Kind.INP and node.name in names and node not in used and not graph.forced[v]
    ]
    kept = prune(graph, idle)
    return graph if kept is None else kept


def task_graphs(instance: Instance, accelerations: Accelerations) -> list[TaskGraph]:
    """Unfolded graphs of all tasks, thinned by APP if that is on."""
    graphs = [unfold(instance, job, task) for job, task in instance.tasks]
    if accelerations.app_share is not None:
        graphs = prune_aggregators(instance, graphs, accelerations.app_share)
    return graphs


def plan_accelerated(
    instance: Instance,
    *,
    accelerations: Accelerations | None = None,
    objective: Objective | None = None,
    effort: Effort | None = None,
) -> Solution:
    """Routes of all tasks by equation 3 (equation 1 for one task, 2 for one job).

    With APP or SRO the solution's ``bound`` holds for the pruned graphs only, with QSR for real rates on the rounded
    capacities.

    Raises:
        NoRoutesError: a task has no routes.
    """
    begin = time.monotonic()
    accelerations = accelerations or Accelerations()
    objective = objective or Objective()
    quantisation = accelerations.quantisation(instance)

    def search(graphs: Sequence[TaskGraph]) -> Solution:
        if quantisation is None:
            return plan_routes(instance, objective=objective, effort=effort, graphs=graphs)
        found = plan_routes(instance, objective=objective, effort=effort, graphs=quantisation.graphs(graphs))
        return quantisation.rounded(instance, found, objective)

    graphs = task_graphs(instance, accelerations)
    first: Solution | None = None
    if accelerations.sro:
        stages = [only_programmable(instance, graph) for graph in graphs]
        whole = [stage for stage in stages if stage is not None]
        if len(whole) == len(graphs):
            try:
                first = search(whole)
            except NoRoutesError:
                first = None
            if first is not None:
                pairs = zip(graphs, whole, first.flows, strict=True)
                graphs = [drop_unused(instance, graph, stage, y) for graph, stage, y in pairs]
    second = search(graphs)
    best = first if first is not None and first.value > second.value else second
    return replace(best, bound=max(best.bound, second.bound), seconds=time.monotonic() - begin)
