"""A smaller relaxation: merges common switches that are equal for all tasks, and pools their links' capacities.

In a leaf-spine network most spines are common and differ only by the pipeline they reach at each PS's leaf; whole
groups of them act as one bundle of parallel links. The bundle ignores that one of its links may fill before another. So
rates that are infeasible for it are infeasible, and rates that fit it nearly always fit the real links.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from mlt.planners.aro.graph import IntArray, Kind, TaskGraph


@dataclass(frozen=True, eq=False)
class Bundled:
    """Task graphs over bundles: ``link`` of every graph indexes bundles; ``width[b]`` parallel links each."""

    graphs: tuple[TaskGraph, ...]
    width: IntArray


def contract(graphs: Sequence[TaskGraph]) -> Bundled:
    """Bundle common switches with the same neighbours, pipelines and capacities in every task's graph."""
    signature: dict[str, list[object]] = defaultdict(list)
    for number, graph in enumerate(graphs):
        for v, node in enumerate(graph.nodes):
            if node.kind is Kind.CS:
                ends = frozenset(
                    [(0, graph.nodes[graph.tail[e]], float(graph.capacity[e])) for e in graph.edges_in[v]]
                    + [(1, graph.nodes[graph.head[e]], float(graph.capacity[e])) for e in graph.edges_out[v]]
                )
                own = node.name if graph.supply[v] else ""
                signature[node.name].append((number, ends, own))
    groups: dict[tuple[object, ...], list[str]] = defaultdict(list)
    for name, parts in signature.items():
        groups[tuple(parts)].append(name)
    leader = {name: group[0] for group in groups.values() for name in group}
    size = {group[0]: len(group) for group in groups.values()}
    links = graphs[0].links
    width = np.ones(len(links), dtype=np.int64)
    for index, (a, b) in enumerate(links):
        width[index] = max(size.get(a, 1), size.get(b, 1))
    return Bundled(tuple(_keep_leaders(graph, leader) for graph in graphs), width)


def _keep_leaders(graph: TaskGraph, leader: dict[str, str]) -> TaskGraph:
    followers = [v for v, node in enumerate(graph.nodes) if leader.get(node.name, node.name) != node.name]
    if not followers:
        return graph
    keep = np.ones(len(graph.nodes), dtype=bool)
    keep[followers] = False
    edges = keep[graph.tail] & keep[graph.head]
    number = np.cumsum(keep) - 1
    return replace(
        graph,
        nodes=tuple(node for node, kept in zip(graph.nodes, keep, strict=True) if kept),
        tail=number[graph.tail[edges]],
        head=number[graph.head[edges]],
        capacity=graph.capacity[edges],
        link=graph.link[edges],
        entry={worker: int(number[v]) for worker, v in graph.entry.items()},
        ps=int(number[graph.ps]),
    )
