"""The unfolded up-down graph of one aggregation task (ARO, section III-A).

A switch occurs once per task: as its downward self where it can reach the parameter server by going only down, as its
upward self elsewhere, and only shortest up-down paths are kept (figure 4). A programmable switch becomes one input
pipeline (INP) per ingress pipeline that can receive, and one output pipeline (OP) (figure 5); any other is a common
switch (CS). Workers are kept as a count at the node they enter, since their first hop is given.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mlt.planners.aro.instance import Instance, InstanceError, Job, Switch, Task

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]


class Kind(Enum):
    """Node types of the unfolded graph, workers aside."""

    PS = "ps"
    CS = "cs"
    INP = "inp"
    OP = "op"


class Node(NamedTuple):
    """A node of the unfolded graph; ``name`` is the physical switch or host, ``pipeline`` is -1 except for INPs."""

    kind: Kind
    name: str
    pipeline: int = -1


@dataclass(frozen=True, eq=False)
class TaskGraph:
    """Nodes and directed edges of one task; edges from an INP to its OP are virtual (infinite capacity).

    ``link[e]`` indexes ``links`` (directed physical links), -1 where the edge is virtual. ``supply[v]`` is the number
    of workers whose first switch node is ``v``.
    """

    job: str
    task: str
    nodes: tuple[Node, ...]
    tail: IntArray
    head: IntArray
    capacity: FloatArray
    link: IntArray
    links: tuple[tuple[str, str], ...]
    entry: Mapping[str, int]
    ps: int
    access_gbps: float

    @cached_property
    def supply(self) -> IntArray:
        return np.bincount(np.fromiter(self.entry.values(), dtype=np.int64), minlength=len(self.nodes))

    @cached_property
    def is_inp(self) -> NDArray[np.bool_]:
        return np.array([node.kind is Kind.INP for node in self.nodes])

    @cached_property
    def forced(self) -> NDArray[np.bool_]:
        """INPs that some worker enters: they always send one flow (constraint 7)."""
        return self.is_inp & (self.supply > 0)

    @cached_property
    def virtual(self) -> NDArray[np.bool_]:
        return self.link < 0

    @cached_property
    def edges_in(self) -> tuple[IntArray, ...]:
        return _group(self.head, len(self.nodes))

    @cached_property
    def edges_out(self) -> tuple[IntArray, ...]:
        return _group(self.tail, len(self.nodes))

    @cached_property
    def op_of(self) -> Mapping[int, int]:
        """INP index to OP index."""
        return {int(self.tail[e]): int(self.head[e]) for e in np.flatnonzero(self.virtual)}

    @cached_property
    def sources(self) -> IntArray:
        """Flows that enter in any case: one per forced INP (at its OP), one per worker at a CS."""
        found = np.where(self.is_inp, 0, self.supply)
        for inp in np.flatnonzero(self.forced):
            found[self.op_of[int(inp)]] += 1
        return found


def _group(keys: IntArray, size: int) -> tuple[IntArray, ...]:
    order = np.argsort(keys, kind="stable")
    bounds = np.searchsorted(keys[order], np.arange(size + 1))
    return tuple(order[bounds[v] : bounds[v + 1]] for v in range(size))


def _next_hops(instance: Instance, ps_leaf: str) -> dict[str, list[str]]:
    """Switch -> next switches on shortest up-down paths to ``ps_leaf``, for every switch that has one."""
    above: dict[str, list[str]] = {switch.name: [] for switch in instance.switches}
    below: dict[str, list[str]] = {switch.name: [] for switch in instance.switches}
    for switch in instance.switches:
        for port in switch.ports:
            peer = instance.switch.get(port.peer)
            if peer is not None:
                (above if peer.tier > switch.tier else below)[switch.name].append(peer.name)
    distance = {ps_leaf: 0}
    hops: dict[str, list[str]] = {ps_leaf: []}
    frontier = [ps_leaf]
    while frontier:  # downward selves: reached from the PS's leaf by climbing only
        reached: dict[str, list[str]] = {}
        for name in frontier:
            for upper in above[name]:
                if upper not in distance:
                    reached.setdefault(upper, []).append(name)
        for name, nexts in reached.items():
            distance[name] = distance[nexts[0]] + 1
            hops[name] = nexts
        frontier = list(reached)
    for tier in sorted({switch.tier for switch in instance.switches}, reverse=True):  # upward selves, top tier first
        for switch in instance.switches:
            if switch.tier != tier or switch.name in distance:
                continue
            options = [upper for upper in above[switch.name] if upper in distance]
            if options:
                nearest = min(distance[upper] for upper in options)
                distance[switch.name] = nearest + 1
                hops[switch.name] = [upper for upper in options if distance[upper] == nearest]
    return hops


class _Builder:
    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self.index: dict[Node, int] = {}
        self.tail: list[int] = []
        self.head: list[int] = []
        self.capacity: list[float] = []
        self.link: list[int] = []

    def node(self, node: Node) -> int:
        return self.index.setdefault(node, len(self.index))

    def exit(self, switch: Switch) -> int:
        return self.node(Node(Kind.OP if switch.programmable else Kind.CS, switch.name))

    def edge(self, tail: int, head: int, capacity: float, link: int) -> None:
        self.tail.append(tail)
        self.head.append(head)
        self.capacity.append(capacity)
        self.link.append(link)

    def enter(self, sender: str, switch: Switch) -> int:
        """The first node of a packet from neighbour ``sender``."""
        if not switch.programmable:
            return self.exit(switch)
        inp = Node(Kind.INP, switch.name, switch.pipeline_of[sender])
        known = inp in self.index
        index = self.node(inp)
        if not known:
            self.edge(index, self.exit(switch), float("inf"), -1)
        return index


def unfold(instance: Instance, job: Job, task: Task) -> TaskGraph:
    """Build the decoupled up-down graph of ``task``.

    Raises:
        InstanceError: a worker has no up-down path to the parameter server.
    """
    ps_leaf = instance.leaf_of[task.ps]
    hops = _next_hops(instance, ps_leaf)
    links = tuple(instance.capacity)  # directed; the same order for every task of an instance
    number = {pair: index for index, pair in enumerate(links)}
    build = _Builder(instance)
    ps = build.node(Node(Kind.PS, task.ps))
    entry: dict[str, int] = {}
    pending: list[str] = []
    for worker in job.workers:
        leaf = instance.leaf_of[worker]
        if leaf not in hops:
            raise InstanceError(f"job {job.name!r}: worker {worker!r} has no up-down path to {task.ps!r}")
        entry[worker] = build.enter(worker, instance.switch[leaf])
        pending.append(leaf)
    done: set[str] = set()
    while pending:
        name = pending.pop()
        if name in done:
            continue
        done.add(name)
        leaving = build.exit(instance.switch[name])
        if name == ps_leaf:
            build.edge(leaving, ps, instance.capacity[name, task.ps], number[name, task.ps])
        for upper in hops[name]:
            entering = build.enter(name, instance.switch[upper])
            build.edge(leaving, entering, instance.capacity[name, upper], number[name, upper])
            pending.append(upper)
    return TaskGraph(
        job=job.name,
        task=task.name,
        nodes=tuple(build.index),
        tail=np.array(build.tail, dtype=np.int64),
        head=np.array(build.head, dtype=np.int64),
        capacity=np.array(build.capacity),
        link=np.array(build.link, dtype=np.int64),
        links=links,
        entry=entry,
        ps=ps,
        access_gbps=min(instance.capacity[worker, instance.leaf_of[worker]] for worker in job.workers),
    )
