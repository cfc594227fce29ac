"""The paper's model for one task as a single programme, for comparison with the search in ``single``.

With capacities given and one task, ``y r <= b`` is ``y <= b z`` for z = 1/r: minimising z is a mixed-integer linear
programme over all of constraints 4 to 10, which any solver of such programmes can take.
"""

from __future__ import annotations

import time
from collections import defaultdict
from itertools import pairwise

import numpy as np

from mlt.planners.aro.flow import drop_idle
from mlt.planners.aro.graph import IntArray, Kind, TaskGraph
from mlt.planners.aro.highs import Rows, Verdict, solve
from mlt.planners.aro.joint import add_task, edge_limits
from mlt.planners.aro.single import NoRoutesError, TaskSolution, candidate_rates


def solve_whole(
    graph: TaskGraph, *, seconds: float, start: IntArray | None = None, symmetry: bool = True, cuts: bool = True
) -> TaskSolution:
    """Solve equation 1 with all flows integer.

    Args:
        start: flows to begin from (warm start).
        symmetry: order interchangeable common switches by the flows they pass.
        cuts: add the valid inequality z >= forced flows / capacity at the PS, and the leaves' cuts.

    Raises:
        NoRoutesError: no solution within ``seconds``.
    """
    begin = time.monotonic()
    edges = len(graph.tail)
    lower, upper = edge_limits(graph, np.full(edges, int(graph.sources.sum()), dtype=np.int64))
    rows = Rows()
    add_task(rows, graph, upper, 0)
    z = edges
    for e in np.flatnonzero(~graph.virtual).tolist():
        rows.add(np.array([e, z]), np.array([1.0, -float(graph.capacity[e])]), -np.inf, 0.0)
    least = 1.0 / graph.access_gbps
    if cuts:
        least = max(least, _least(graph))
    if symmetry:
        _order(rows, graph)
    cost = np.append(np.zeros(edges), 1.0)
    first = None if start is None else np.append(start.astype(np.float64), 1.0 / rate_of(graph, start))
    answer = solve(
        cost,
        np.append(lower, least),
        np.append(upper, np.inf),
        np.append(np.ones(edges, dtype=bool), False),
        rows,
        seconds=seconds,
        start=first,
    )
    if answer.x is None:
        raise NoRoutesError(f"task {graph.job}/{graph.task}: no solution of the whole programme in {seconds} s")
    y = drop_idle(graph, np.rint(answer.x[:edges]).astype(np.int64))
    rate = rate_of(graph, y)
    bound = rate if answer.verdict is Verdict.OPTIMAL else 1.0 / max(answer.bound, least)
    rates = candidate_rates(graph)
    bound = float(rates[rates <= bound * (1 + 1e-6)].max(initial=rate))
    return TaskSolution(rate, max(bound, rate), y, 1, time.monotonic() - begin)


def _least(graph: TaskGraph) -> float:
    """A lower bound of z: forced flows over the PS's link, and each source's flows over all its links."""
    last = graph.edges_in[graph.ps]
    found = 0.0
    for v in np.flatnonzero(graph.sources).tolist():
        found = max(found, float(graph.sources[v] / graph.capacity[graph.edges_out[v]].sum()))
    return max(found, float(max(1, graph.sources[graph.tail[last]].sum()) / graph.capacity[last].sum()))


def _order(rows: Rows, graph: TaskGraph) -> None:
    groups: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for v, node in enumerate(graph.nodes):
        if node.kind is Kind.CS and graph.supply[v] == 0:
            into = sorted((int(graph.tail[e]), float(graph.capacity[e])) for e in graph.edges_in[v])
            out = sorted((int(graph.head[e]), float(graph.capacity[e])) for e in graph.edges_out[v])
            groups[tuple(into), tuple(out)].append(v)
    for group in groups.values():
        for v, w in pairwise(group):
            out_v, out_w = graph.edges_out[v], graph.edges_out[w]
            values = np.concatenate([np.ones(len(out_v)), -np.ones(len(out_w))])
            rows.add(np.concatenate([out_v, out_w]), values, 0.0, np.inf)


def rate_of(graph: TaskGraph, y: IntArray) -> float:
    """The rate that ``y`` allows alone: the smallest capacity per flow, the workers' own links included."""
    loaded = y > 0
    return float(min(np.min(graph.capacity[loaded] / y[loaded]), graph.access_gbps))
