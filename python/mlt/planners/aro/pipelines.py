"""Choice of input pipelines to open: heuristic guesses, tried before any integer programme.

In a two-tier network, the PS's leaf opens as many INPs as its link carries; the spines behind closed INPs are unused. A
programmable spine may open as many INPs as its link to that leaf carries flows, and opens those that remove most of the
remaining load. In any network, INPs may be opened as flows reach them (``grow``).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

import numpy as np

from mlt.planners.aro.flow import BoolArray, route_flow
from mlt.planners.aro.graph import IntArray, Kind, TaskGraph


def guesses(graph: TaskGraph, fits: IntArray, *, limit: int = 24) -> Iterator[BoolArray]:
    """Yield sets of INPs to open, most promising first; none unless the PS leaf is programmable.

    ``fits[e]`` is the number of flows edge ``e`` may carry at this rate.
    """
    last_edges = graph.edges_in[graph.ps]
    if len(last_edges) != 1:
        return
    exit_node = int(graph.tail[last_edges[0]])
    if graph.nodes[exit_node].kind is not Kind.OP:
        return
    gates = [int(graph.tail[e]) for e in graph.edges_in[exit_node]]
    forced = [v for v in gates if graph.forced[v]]
    free = [v for v in gates if not graph.forced[v]]
    room = int(fits[last_edges[0]]) - len(forced)
    if room < 0:
        return
    options = [(*forced, *extra) for extra in combinations(free, min(room, len(free)))]
    ranked = sorted(options, key=lambda option: -sum(_weight(graph, gate) for gate in option))
    for option in ranked[:limit]:
        yield _open_spines(graph, fits, set(option), set(gates))


def _weight(graph: TaskGraph, gate: int) -> int:
    """Weight of a gate: programmable spines behind it count most, then plain ones."""
    tails = graph.tail[graph.edges_in[gate]]
    return int(sum(1000 if graph.nodes[v].kind is Kind.OP else 1 for v in tails))


def _open_spines(graph: TaskGraph, fits: IntArray, gates: set[int], all_gates: set[int]) -> BoolArray:
    opened: BoolArray = graph.forced.copy()
    opened[list(gates)] = True
    left = graph.sources.astype(np.int64).copy()
    reachable = {int(graph.tail[e]): int(fits[e]) for gate in gates for e in graph.edges_in[gate]}
    for op, budget in reachable.items():
        if graph.nodes[op].kind is not Kind.OP:
            continue
        inputs = [int(graph.tail[e]) for e in graph.edges_in[op] if graph.virtual[e]]
        inputs = [v for v in inputs if v not in all_gates and not graph.forced[v]]
        relief = {
            v: int(np.minimum(fits[graph.edges_in[v]], left[graph.tail[graph.edges_in[v]]]).sum()) for v in inputs
        }
        for v in sorted(inputs, key=lambda v: -relief[v])[:budget]:
            if relief[v] == 0:
                continue
            opened[v] = True
            into = graph.edges_in[v]
            left[graph.tail[into]] -= np.minimum(fits[into], left[graph.tail[into]])
    return opened


def grow(graph: TaskGraph, fits: IntArray, *, rounds: int = 16) -> IntArray | None:
    """Open INPs as flows reach them, for any number of tiers: in each round closed INPs absorb flows, then those open.

    A switch whose outgoing links are fully used opens no more; of too many candidates the fullest stay. Returns flows
    once a round opens no INP, None if the flows stop fitting.
    """
    opened: BoolArray = graph.forced.copy()
    takes: BoolArray = graph.is_inp.copy()
    for _ in range(rounds):
        y = route_flow(graph, fits, opened, takes=takes)
        if y is None:
            return None
        inflow = np.bincount(graph.head, weights=y, minlength=len(graph.nodes))
        fresh = np.flatnonzero(graph.is_inp & ~opened & (inflow > 0)).tolist()
        if not fresh:
            return y
        for op in {graph.op_of[v] for v in fresh}:
            inputs = [int(graph.tail[e]) for e in graph.edges_in[op] if graph.virtual[e]]
            room = int(fits[graph.edges_out[op]].sum()) - sum(bool(opened[v]) for v in inputs)
            wanted = sorted((v for v in inputs if v in fresh), key=lambda v: -inflow[v])
            opened[wanted[: max(room, 0)]] = True
            if len(wanted) >= room:
                takes[[v for v in inputs if not opened[v]]] = False
    return None
