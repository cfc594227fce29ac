"""All tasks at given rates in one integer programme: constraints 4 to 10 with r fixed, hence linear.

The flows of several tasks share links at different rates. Unlike those of one task, they are not integral by
themselves: every ``y`` on a shared link is an integer variable.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from mlt.planners.aro.flow import BoolArray, drop_idle, flows_that_fit
from mlt.planners.aro.graph import FloatArray, IntArray, TaskGraph
from mlt.planners.aro.highs import Answer, Rows, Verdict, solve


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


def solve_together(
    graphs: Sequence[TaskGraph],
    rates: FloatArray,
    integer: BoolArray,
    *,
    seconds: float,
    width: IntArray | None = None,
) -> Answer:
    """Flows of all tasks at ``rates``, of which those of the edges ``integer`` are whole.

    ``width``: number of parallel links behind each link of bundled graphs.
    """
    offsets = np.cumsum([0, *(len(graph.tail) for graph in graphs)])
    rows = Rows()
    lowers, uppers = [], []
    on_link: dict[int, list[tuple[int, float, float]]] = defaultdict(list)
    for i, graph in enumerate(graphs):
        real = ~graph.virtual
        parallel = (
            np.ones(len(real), dtype=np.int64)
            if width is None
            else np.where(real, width[np.where(real, graph.link, 0)], 1)
        )
        lower, upper = edge_limits(graph, flows_that_fit(graph.capacity, float(rates[i])) * parallel)
        lowers.append(lower)
        uppers.append(upper)
        add_task(rows, graph, upper, int(offsets[i]))
        for e in np.flatnonzero(real).tolist():
            pooled = float(graph.capacity[e]) * float(parallel[e])
            on_link[int(graph.link[e])].append((int(offsets[i]) + e, float(rates[i]), pooled))
    for users in on_link.values():
        if len(users) > 1:
            columns, loads, capacities = (np.array(side) for side in zip(*users, strict=True))
            rows.add(columns, loads, -np.inf, float(capacities[0]) * (1 + 1e-9))
    bounds = np.concatenate(lowers), np.concatenate(uppers)
    return solve(np.zeros(int(offsets[-1])), *bounds, integer, rows, seconds=seconds)


def route_jointly(
    graphs: Sequence[TaskGraph], rates: FloatArray, *, seconds: float
) -> tuple[Verdict, list[IntArray] | None]:
    """Routes of all tasks at ``rates``, or a proof that none exist, or UNKNOWN when time runs out."""
    if seconds <= 0:
        return Verdict.UNKNOWN, None
    offsets = np.cumsum([0, *(len(graph.tail) for graph in graphs)])
    answer = solve_together(graphs, rates, np.ones(int(offsets[-1]), dtype=bool), seconds=seconds)
    if answer.x is None:
        return answer.verdict, None
    whole = np.rint(answer.x).astype(np.int64)
    return Verdict.FEASIBLE, [drop_idle(graph, whole[offsets[i] : offsets[i + 1]]) for i, graph in enumerate(graphs)]
