"""Link-disjoint paths between modules.

Source: PSNet, section 3.1 (data between two SuperNodes is spread over R parallel paths that share no link). The R paths
of least total length are found as a minimum-cost flow of R units, each link carrying one unit; a trunk carries as many
as it has links.
"""

from __future__ import annotations

from itertools import pairwise

import networkx as nx

from mlt.planners.psnet.checks import TopologyError
from mlt.planners.psnet.wiring import Pair

ModulePath = tuple[int, ...]


def disjoint_paths(trunks: dict[Pair, int], source: int, target: int) -> dict[ModulePath, int]:
    """The most link-disjoint paths, of min total length: path (module numbers) -> number of parallel links.

    Raises:
        TopologyError: no path is left.
    """
    graph: nx.DiGraph[int] = nx.DiGraph()
    graph.add_nodes_from((source, target))
    for (a, b), links in sorted(trunks.items()):
        graph.add_edge(a, b, capacity=links, weight=1)
        graph.add_edge(b, a, capacity=links, weight=1)
    flow = nx.max_flow_min_cost(graph, source, target)
    left = {(a, b): amount for a, targets in flow.items() for b, amount in targets.items() if amount > 0}
    paths: dict[ModulePath, int] = {}
    while any(a == source for a, _ in left):
        walk = [source]
        while walk[-1] != target:
            step = min(b for a, b in left if a == walk[-1])
            walk.append(step)
        width = min(left[link] for link in pairwise(walk))
        for link in pairwise(walk):
            left[link] -= width
            if not left[link]:
                del left[link]
        paths[tuple(walk)] = paths.get(tuple(walk), 0) + int(width)
    if not paths:
        raise TopologyError(f"no route is left from module {source} to module {target}")
    return dict(sorted(paths.items(), key=lambda item: (len(item[0]), item[0])))


def shortest_paths(trunks: dict[Pair, int], source: int, target: int, *, count: int) -> list[ModulePath]:
    """The ``count`` shortest simple paths (fewer when there are no more), shortest first, ties in module order."""
    if count == 0:
        return []
    graph: nx.Graph[int] = nx.Graph()
    graph.add_nodes_from((source, target))
    graph.add_edges_from(sorted(trunks))
    found: list[ModulePath] = []
    try:
        for path in nx.shortest_simple_paths(graph, source, target):
            if len(found) >= count and len(path) > len(found[-1]):
                break
            found.append(tuple(path))
            if len(found) >= 16 * count:  # many equal ones: enough to choose from
                break
    except nx.NetworkXNoPath:
        return []
    return sorted(found, key=lambda path: (len(path), path))[:count]
