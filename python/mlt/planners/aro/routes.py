"""Route generation (ARO, algorithm 1): from flows per edge to one path per worker.

Line 18 of the printed algorithm records the path of an INP if one is already known. It must record if none is known;
otherwise no path is ever recorded and lines 8 and 14 never reuse one. Here the first flow through an INP records its
path.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mlt.planners.aro.graph import IntArray, Kind, TaskGraph


@dataclass(frozen=True)
class WorkerRoute:
    """Every node from worker to parameter server, both included, as physical names.

    ``aggregators``: switches that may merge this flow; None means every programmable one on the path.
    """

    path: tuple[str, ...]
    aggregators: frozenset[str] | None = None


@dataclass(frozen=True)
class TaskPlan:
    """Routes of one task with the rate of every worker (Gbit/s) and, where known, the rate's proven upper bound."""

    job: str
    task: str
    ps: str
    rate: float
    routes: Mapping[str, WorkerRoute]
    bound: float | None = None


class RouteError(ValueError):
    """Flows that are not routes: a node receives more than it sends."""


def generate_routes(graph: TaskGraph, y: IntArray) -> dict[str, WorkerRoute]:
    """Walk from each worker along edges with remaining flow, until the PS or an INP whose onward path is known.

    Raises:
        RouteError: ``y`` breaks flow conservation.
    """
    left = y.copy()
    cursor = [0] * len(graph.nodes)
    known: dict[int, list[int]] = {graph.ps: [graph.ps]}
    found: dict[str, WorkerRoute] = {}
    for worker, entry in graph.entry.items():
        walk: list[int] = []
        u = entry
        while u not in known:
            walk.append(u)
            out = graph.edges_out[u]
            while cursor[u] < len(out) and left[out[cursor[u]]] == 0:
                cursor[u] += 1
            if cursor[u] == len(out):
                raise RouteError(f"worker {worker!r}: no flow leaves {graph.nodes[u]}; y breaks conservation there")
            e = out[cursor[u]]
            left[e] -= 1
            u = int(graph.head[e])
        path = walk + known[u]
        for place, node in enumerate(path):
            if graph.is_inp[node] and node not in known:
                known[node] = path[place:]
        found[worker] = WorkerRoute(_physical(graph, worker, path))
    return found


def _physical(graph: TaskGraph, worker: str, path: list[int]) -> tuple[str, ...]:
    """Names along ``path``; a switch's INP and OP count once."""
    return (worker, *(graph.nodes[v].name for v in path if graph.nodes[v].kind is not Kind.INP))
