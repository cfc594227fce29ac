"""Link loads of worker-server flows on a graph: C of equation 7, and times that use none of equations 5 to 7.

Two ways to use equal-cost shortest paths: ``fluid`` splits every flow evenly over all of them (packet spraying, or the
best that balanced routes can do on a symmetric network); ``hashed`` puts each flow on one of them at random (ECMP).

A load is directed: (from, to) -> amount. The time to drain loads in bytes is that of the fullest link.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from random import Random

import networkx as nx

from mlt.planners.psnet.checks import TopologyError
from studies.graph import Graph, bandwidth

Loads = dict[tuple[str, str], float]
Demands = Mapping[tuple[str, str], float]


@dataclass(frozen=True)
class Drain:
    """The time that the fullest link needs, seconds, and which one it is (None when nothing is sent)."""

    seconds: float
    link: tuple[str, str] | None


def push_demands(workers: Iterable[str], servers: Iterable[str], size_bytes: float) -> dict[tuple[str, str], float]:
    """Every worker sends S/P bytes to every server."""
    targets = list(servers)
    return {(worker, server): size_bytes / len(targets) for worker in workers for server in targets}


def fluid_loads(graph: Graph, demands: Demands) -> Loads:
    """Loads when each demand is split evenly over all its shortest paths."""

    def split(paths: list[list[str]], amounts: list[float]) -> list[float]:
        return [sum(amounts) / len(paths)] * len(paths)

    return _loads(graph, demands, split)


def hashed_loads(graph: Graph, demands: Demands, *, seed: int) -> Loads:
    """Loads when each demand takes one of its shortest paths, drawn from ``seed``."""
    rng = Random(seed)

    def split(paths: list[list[str]], amounts: list[float]) -> list[float]:
        shares = [0.0] * len(paths)
        for amount in amounts:
            shares[rng.randrange(len(paths))] += amount
        return shares

    return _loads(graph, demands, split)


def max_concurrent(graph: Graph, loads: Loads) -> float:
    """C of equation 7: the most that any link between two switches carries (loads made from demands of 1 per flow)."""
    between = [load for (a, b), load in loads.items() if "host" not in (graph.nodes[a]["kind"], graph.nodes[b]["kind"])]
    return max(between, default=0.0)


def drain(graph: Graph, loads: Loads) -> Drain:
    """Time of the fullest link for loads in bytes."""
    if not loads:
        return Drain(0.0, None)
    seconds, link = max((8 * load / bandwidth(graph, a, b), (a, b)) for (a, b), load in loads.items())
    return Drain(seconds, link)


def max_hops(graph: Graph, demands: Demands) -> int:
    """The longest shortest path among the demands, in links."""
    targets_of: dict[str, set[str]] = defaultdict(set)
    for source, target in demands:
        targets_of[source].add(target)
    longest = 0
    for source, targets in targets_of.items():
        distance = nx.single_source_shortest_path_length(graph, source)
        longest = max(longest, *(distance[target] for target in targets))
    return longest


#: (paths, amounts of the demands that may use them) -> load of each path
Split = Callable[[list[list[str]], list[float]], list[float]]


def _loads(graph: Graph, demands: Demands, split: Split) -> Loads:
    loads: defaultdict[tuple[str, str], float] = defaultdict(float)
    # Hosts on the same switches have the same paths between those switches: find and load them once.
    together: defaultdict[tuple[tuple[str, ...], tuple[str, ...]], list[tuple[str, str]]] = defaultdict(list)
    for source, target in demands:
        together[_attachment(graph, source), _attachment(graph, target)].append((source, target))
    fabric: Graph = nx.Graph(graph.subgraph([n for n, d in graph.nodes(data=True) if d["kind"] == "switch"]))
    for ends, pairs in together.items():
        paths = _switch_paths(fabric, *ends)
        single = {node: len({path[place] for path in paths}) == 1 for node, place in (("first", 0), ("last", -1))}
        if single["first"] and single["last"]:
            amounts = [demands[pair] for pair in pairs]
            for (source, target), amount in zip(pairs, amounts, strict=True):
                loads[source, paths[0][0]] += amount
                loads[paths[0][-1], target] += amount
            _add(loads, paths, split(paths, amounts), [(), ()])
        else:  # a host with several links: which of them it uses depends on the path
            for pair in pairs:
                _add(loads, paths, split(paths, [demands[pair]]), [(pair[0],), (pair[1],)])
    return dict(loads)


def _add(loads: Loads, paths: list[list[str]], shares: list[float], ends: list[tuple[str, ...]]) -> None:
    for path, share in zip(paths, shares, strict=True):
        if share:
            for link in pairwise([*ends[0], *path, *ends[1]]):
                loads[link] = loads.get(link, 0.0) + share


def _attachment(graph: Graph, host: str) -> tuple[str, ...]:
    if host not in graph:
        raise TopologyError(f"no node {host!r} in the {graph.graph.get('name', 'network')} graph")
    switches = sorted(node for node in graph.neighbors(host) if graph.nodes[node]["kind"] == "switch")
    if not switches:
        raise TopologyError(f"{host} hangs on no switch; a link or circuit is missing")
    return tuple(switches)


def _switch_paths(fabric: Graph, source: tuple[str, ...], target: tuple[str, ...]) -> list[list[str]]:
    """All shortest paths of switches from one host's switches to another's, sorted; hosts never forward for others."""
    best: list[list[str]] = []
    for first in source:
        for last in target:
            try:
                length = nx.shortest_path_length(fabric, first, last) + 1
            except nx.NetworkXNoPath:
                continue
            if not best or length < len(best[0]):
                best = []
            if not best or length == len(best[0]):
                best += nx.all_shortest_paths(fabric, first, last)
    if not best:
        raise TopologyError(f"no path of switches joins {source} and {target}; a link or circuit is missing")
    return sorted(best)
