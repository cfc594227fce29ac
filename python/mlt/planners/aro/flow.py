"""Routing at a fixed rate with a fixed set of open input pipelines is an ordinary integral flow.

An open INP absorbs its input and sends one flow on: it is a sink for its input and a source of one unit at its OP. For
chosen open INPs, all ``y`` of the paper's constraints 4 to 10 at a given rate form a maximum flow with integer
capacities ``floor(b / r)``, whose solution is integral.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlt.planners.aro.graph import FloatArray, IntArray, TaskGraph

BoolArray = NDArray[np.bool_]
_SLACK = 1e-9  # relative; a capacity that is an exact multiple of the rate must not lose a flow to rounding


def flows_that_fit(capacity: FloatArray, rate: float) -> IntArray:
    """Number of flows of ``rate`` within each capacity: ``floor(b / r)``; a large number if that is unbounded."""
    with np.errstate(invalid="ignore", divide="ignore"):
        count = np.floor(capacity / rate * (1 + _SLACK))
    return np.where(np.isfinite(count), count, 2**30).clip(0, 2**30).astype(np.int64)


def maximum_flow(
    tails: IntArray, heads: IntArray, capacity: IntArray, *, nodes: int, source: int, sink: int
) -> tuple[int, IntArray]:
    """Value and flow per arc. Arcs must be distinct pairs; capacities are below 2^31."""
    # scipy has no types; importing it by name keeps the package strictly typed with or without stubs for it. It is an
    # extra, without which commands still show their help.
    sparse: Any = import_module("scipy.sparse")
    csgraph: Any = import_module("scipy.sparse.csgraph")
    network = sparse.csr_array((capacity.astype(np.int32), (tails, heads)), shape=(nodes, nodes))
    result = csgraph.maximum_flow(network, source, sink)
    flow = result.flow.tocsr()
    return int(result.flow_value), np.asarray(flow[tails, heads], dtype=np.int64).ravel()


def route_flow(
    graph: TaskGraph, fits: IntArray, opened: BoolArray, *, takes: BoolArray | None = None
) -> IntArray | None:
    """Flows per edge when exactly the INPs ``opened`` aggregate, or None if the sources do not fit.

    ``fits[e]``: number of flows that edge ``e`` may carry. ``takes`` relaxes: INPs in it but not in ``opened`` absorb
    flows and send none. If even ``relaxed_flow`` is None, no choice of INPs fits.
    """
    size = len(graph.nodes)
    source, sink = size, size + 1
    emits = opened
    takes = opened if takes is None else takes
    supply = np.where(graph.is_inp, 0, graph.supply)
    virtual = np.flatnonzero(graph.virtual)
    emitting = virtual[emits[graph.tail[virtual]]]
    np.add.at(supply, graph.head[emitting], 1)
    usable = ~graph.virtual & (~graph.is_inp[graph.head] | takes[graph.head]) & (fits > 0)
    used = np.flatnonzero(usable)
    total = int(supply.sum())
    fed = np.flatnonzero(supply)
    ends = np.flatnonzero(takes)
    rows = np.concatenate([graph.tail[used], np.full(len(fed), source), ends, [graph.ps]])
    columns = np.concatenate([graph.head[used], fed, np.full(len(ends), sink), [sink]])
    limits = np.concatenate([np.minimum(fits[used], total), supply[fed], np.full(len(ends) + 1, total)])
    value, flow = maximum_flow(rows, columns, limits, nodes=size + 2, source=source, sink=sink)
    if value < total:
        return None
    y = np.zeros(len(graph.tail), dtype=np.int64)
    y[used] = flow[: len(used)]
    y[emitting] = 1
    return y


def relaxed_flow(graph: TaskGraph, fits: IntArray) -> IntArray | None:
    """Flows if every INP may absorb but only INPs forced open by workers send; None proves infeasibility."""
    return route_flow(graph, fits, graph.forced, takes=graph.is_inp)


def drop_idle(graph: TaskGraph, y: IntArray) -> IntArray:
    """Remove the flow of every INP without input, and of INPs further down that become idle as a result."""
    y = y.copy()
    inflow = np.bincount(graph.head, weights=y, minlength=len(graph.nodes)).astype(np.int64) + graph.supply
    idle = [int(e) for e in np.flatnonzero(graph.virtual & (y > 0)) if inflow[graph.tail[e]] == 0]
    while idle:
        e = idle.pop()
        while True:
            y[e] -= 1
            v = int(graph.head[e])
            inflow[v] -= 1
            if v == graph.ps or (graph.is_inp[v] and inflow[v] > 0):
                break
            e = next(int(out) for out in graph.edges_out[v] if y[out] > 0)
    return y
