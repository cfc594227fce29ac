"""All tasks at given rates in one integer programme: constraints 4 to 10 with r fixed, hence linear.

The flows of several tasks share links at different rates. Unlike those of one task, they are not integral by
themselves: every ``y`` on a shared link is an integer variable.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from mlt.planners.aro.flow import drop_idle, flows_that_fit
from mlt.planners.aro.graph import FloatArray, IntArray, TaskGraph
from mlt.planners.aro.highs import Rows, Verdict, solve


def add_task(rows: Rows, graph: TaskGraph, upper: FloatArray, offset: int) -> None:
    """Conservation at CS and OP (9) and no flow into a closed INP (7), for edge variables from ``offset`` on."""
    supply = np.where(graph.is_inp, 0, graph.supply)
    for v in range(len(graph.nodes)):
        if v == graph.ps or graph.is_inp[v]:
            continue
        into, out = graph.edges_in[v], graph.edges_out[v]
        values = np.concatenate([np.ones(len(out)), -np.ones(len(into))])
        rows.add(np.concatenate([out, into]) + offset, values, float(supply[v]), float(supply[v]))
    for v in np.flatnonzero(graph.is_inp & ~graph.forced).tolist():
        gate = int(graph.edges_out[v][0])
        for e in graph.edges_in[v].tolist():
            rows.add(np.array([e, gate]) + offset, np.array([1.0, -upper[e]]), -np.inf, 0.0)


def edge_limits(graph: TaskGraph, fits: IntArray) -> tuple[FloatArray, FloatArray]:
    """Lower and upper bounds of the flows: virtual edges carry 0 or 1, exactly 1 where a worker forces them."""
    upper = np.minimum(fits, int(graph.supply.sum())).astype(np.float64)
    upper[graph.virtual] = 1.0
    lower = np.zeros(len(upper))
    lower[graph.virtual & graph.forced[graph.tail]] = 1.0
    return lower, upper


def route_jointly(
    graphs: Sequence[TaskGraph], rates: FloatArray, *, seconds: float
) -> tuple[Verdict, list[IntArray] | None]:
    """Routes of all tasks at ``rates``, or a proof that none exist, or UNKNOWN when time runs out."""
    if seconds <= 0:
        return Verdict.UNKNOWN, None
    offsets = np.cumsum([0, *(len(graph.tail) for graph in graphs)])
    rows = Rows()
    lowers, uppers = [], []
    on_link: dict[int, list[tuple[int, float, float]]] = defaultdict(list)
    for i, graph in enumerate(graphs):
        lower, upper = edge_limits(graph, flows_that_fit(graph.capacity, float(rates[i])))
        lowers.append(lower)
        uppers.append(upper)
        add_task(rows, graph, upper, int(offsets[i]))
        for e in np.flatnonzero(~graph.virtual).tolist():
            column = int(offsets[i]) + e
            on_link[int(graph.link[e])].append((column, float(rates[i]), float(graph.capacity[e])))
    for users in on_link.values():
        if len(users) > 1:
            columns, loads, capacities = (np.array(side) for side in zip(*users, strict=True))
            rows.add(columns, loads, -np.inf, float(capacities[0]) * (1 + 1e-9))
    total = int(offsets[-1])
    integer = np.ones(total, dtype=bool)
    answer = solve(np.zeros(total), np.concatenate(lowers), np.concatenate(uppers), integer, rows, seconds=seconds)
    if answer.x is None:
        return answer.verdict, None
    whole = np.rint(answer.x).astype(np.int64)
    return Verdict.FEASIBLE, [drop_idle(graph, whole[offsets[i] : offsets[i + 1]]) for i, graph in enumerate(graphs)]
