"""ARO's routes as transfers: streams follow their routes and merge where a switch's pipeline sums them.

Per task (one server of the job) the routes are a tree: workers, aggregators, the server. An aggregator receives one
stream from each child and sends a part on once all children have sent it. It returns the result to each child over the
same cables, as ``mlt.planners.plan.link_load`` counts. A real pipeline sums packet by packet. Here it sums part by
part, so each level of aggregators adds a part's time to the iteration's. An aggregator with one child only forwards.
The tasks of a job share its gradients in proportion to their rates. All senders keep to the planned rates, from which
ARO's shares of links follow; otherwise workers with faster NICs would exceed their shares.

Absent: the memory of pipelines (ARO does not model it), repair across an aggregator (each leg repairs its own losses).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mlt.planners.plan import JobPlan, Route, TaskRoutes, WorkerCluster
from mlt.planners.show.explain import tree_feeds_routes
from mlt.simulation.scenario import Aggregator, Transfer, Ways
from mlt.simulation.workload import NotSimulated, Workload, parts_of, whole_floats


@dataclass(frozen=True)
class TaskTree:
    """One task's streams: sender and receiver, the nodes between them (both ends included), children before parents."""

    server: str
    share: float
    rate: float
    aggregators: tuple[Aggregator, ...]
    legs: tuple[tuple[str, ...], ...]

    @property
    def children(self) -> dict[str, list[str]]:
        """Receiver -> its senders."""
        out: dict[str, list[str]] = {}
        for leg in self.legs:
            out.setdefault(leg[-1], []).append(leg[0])
        return out


def routed_workload(plan: JobPlan, *, size: float) -> Workload:
    """One iteration over planned routes with ``size`` bytes of gradients per worker.

    Raises:
        NotSimulated: the plan has no routes, or merged streams separate again.
    """
    trees = task_trees(plan)
    groups: Sequence[WorkerCluster] = ()
    if plan.aggregation is not None and tree_feeds_routes(plan):
        groups = plan.aggregation.clusters
    members = sum(len(group.members) for group in groups)
    per_part = sum(2 * len(tree.legs) for tree in trees) + members * (1 + len(trees))
    parts = parts_of(size, transfers=per_part, smallest=min(tree.share for tree in trees))
    out: list[Transfer] = []
    for _ in range(parts):
        gathered = {}
        for group in groups:
            gathered[group.aggregator] = tuple(range(len(out), len(out) + len(group.members)))
            out += [Transfer(member, group.aggregator, whole_floats(size / parts)) for member in group.members]
        for tree in trees:
            answers = _push_and_return(out, tree, gathered, whole_floats(size * tree.share / parts))
            for group in groups:
                after = (answers[group.aggregator],)
                part = whole_floats(size * tree.share / parts)
                out += [Transfer(group.aggregator, member, part, after) for member in group.members]
    return Workload(
        transfers=tuple(out),
        aggregators=tuple(place for tree in trees for place in tree.aggregators),
        ways=tuple(Ways(leg[0], leg[-1], (leg,)) for tree in trees for leg in tree.legs),
        rates=tuple(_rates(trees, groups).items()),
    )


def _rates(trees: Sequence[TaskTree], groups: Sequence[WorkerCluster]) -> dict[str, float]:
    """Max send rate of each node to one peer. Below worker aggregators, the parts of all tasks form one stream."""
    out: dict[str, float] = {}
    for tree in trees:
        for name in {node for leg in tree.legs for node in (leg[0], leg[-1])}:
            out[name] = max(out.get(name, 0.0), tree.rate)
    whole = sum(tree.rate for tree in trees)
    for group in groups:
        for name in (group.aggregator, *group.members):
            out[name] = whole
    return out


def _push_and_return(
    out: list[Transfer], tree: TaskTree, gathered: dict[str, tuple[int, ...]], part: int
) -> dict[str, int]:
    """Append one part's transfers up and down ``tree``; returns the transfer that brings each node its result."""
    arrived: dict[str, list[int]] = {name: list(indices) for name, indices in gathered.items()}
    for leg in tree.legs:
        source, receiver = leg[0], leg[-1]
        after = tuple(arrived.get(source, ()))
        arrived.setdefault(receiver, []).append(len(out))
        out.append(Transfer(source, receiver, part, after))
    answers: dict[str, int] = {}
    for leg in reversed(tree.legs):
        child, parent = leg[0], leg[-1]
        after = (answers[parent],) if parent in answers else tuple(arrived[parent])
        answers[child] = len(out)
        out.append(Transfer(parent, child, part, after))
    return answers


def task_trees(plan: JobPlan) -> tuple[TaskTree, ...]:
    """The tree of every task that has a rate.

    Raises:
        NotSimulated: no task has a rate, or merged streams separate again.
    """
    tasks = [task for task in plan.routing.tasks if task.rate > 0] if plan.routing is not None else []
    total = sum(task.rate for task in tasks)
    if not tasks:
        raise NotSimulated("the plan's routes have no rate")
    return tuple(_tree(task, task.rate / total) for task in tasks)


def _tree(task: TaskRoutes, share: float) -> TaskTree:
    switch_of: dict[str, str] = {}
    onward: dict[str, tuple[str, ...]] = {}  # from each worker and aggregator to the next aggregator or the server
    for route in task.routes:
        for leg in _legs_of(route, task.server, switch_of):
            if onward.setdefault(leg[0], leg) != leg:
                raise NotSimulated(
                    f"streams to {task.server} that merge at {switch_of.get(leg[0], leg[0])} part again: "
                    f"{' '.join(onward[leg[0]][1:])} and {' '.join(leg[1:])}"
                )
    _drop_single(onward, switch_of)
    depth: dict[str, int] = {task.server: 0}

    def deep(name: str) -> int:
        if name not in depth:
            depth[name] = 1 + deep(onward[name][-1])
        return depth[name]

    legs = sorted(onward.values(), key=lambda leg: -deep(leg[0]))
    aggregators = tuple(Aggregator(name, switch_of[name]) for name in onward if name in switch_of)
    return TaskTree(server=task.server, share=share, rate=task.rate, aggregators=aggregators, legs=tuple(legs))


def _legs_of(route: Route, server: str, switch_of: dict[str, str]) -> list[tuple[str, ...]]:
    """``route`` cut at the aggregators; adds these to ``switch_of``."""
    place_at = {}
    for use in route.aggregated_at:
        name = f"{use.switch} pipeline {use.pipeline} to {server}"
        place_at[use.switch] = name
        switch_of[name] = use.switch
    legs: list[tuple[str, ...]] = []
    leg = [route.path[0]]
    for node in route.path[1:]:
        leg.append(node)
        if node in place_at:
            legs.append((*leg, place_at[node]))
            leg = [place_at[node], node]
    return [*legs, tuple(leg)]


def _drop_single(onward: dict[str, tuple[str, ...]], switch_of: dict[str, str]) -> None:
    """Remove the aggregators that only one stream enters: they only forward."""
    children: dict[str, list[str]] = {}
    for name, leg in onward.items():
        children.setdefault(leg[-1], []).append(name)
    for place in [name for name in onward if name in switch_of and len(children[name]) == 1]:
        (child,) = children[place]
        onward[child] = (*onward[child][:-2], *onward[place][1:])  # both legs contain the switch
        parent = onward[place][-1]
        children[parent] = [child if name == place else name for name in children[parent]]
        del onward[place]
