"""Networks as graphs with attributes, for the studies of several papers.

A graph is an undirected ``networkx.Graph``. An edge is a full-duplex link: its bandwidth holds in each direction.

Node attributes
    ``kind``   ``"host"`` or ``"switch"``
    ``role``   the usual name of the node: ``host``, ``worker``, ``server`` (a parameter server), ``leaf``,
               ``spine``, ``edge``, ``aggregation``, ``core``, ``tor``, ``supernode`` (a SuperNode's switch), ``ecs``
    ``level``  hops above the hosts in an up-down network: 0 for a host, 1 for its switch, and so on
    ``group``  pod of a fat-tree, module of a PSNet, -1 where the network has none
    ``index``  position among its siblings, from 0

Edge attributes
    ``bits_per_second``   bandwidth of the whole edge in each direction
    ``latency_seconds``   propagation and switching, one way
    ``links``             number of parallel physical links of the edge (a trunk if more than one)

Graph attribute: ``name`` of the family.
"""

from __future__ import annotations

from typing import TypeAlias

import networkx as nx

from mlt.planners.cluster import Cluster, Host
from mlt.planners.psnet.checks import DEFAULT_LATENCY_SECONDS, TopologyError

Graph: TypeAlias = "nx.Graph[str]"


def add_host(graph: Graph, name: str, *, role: str = "host", group: int = -1, index: int) -> str:
    """Add a host (level 0) and return its name."""
    graph.add_node(name, kind="host", role=role, level=0, group=group, index=index)
    return name


def add_switch(graph: Graph, name: str, *, role: str, level: int, group: int = -1, index: int) -> str:
    """Add a switch and return its name."""
    graph.add_node(name, kind="switch", role=role, level=level, group=group, index=index)
    return name


def add_link(
    graph: Graph,
    a: str,
    b: str,
    *,
    bits_per_second: float,
    latency_seconds: float = DEFAULT_LATENCY_SECONDS,
    links: int = 1,
) -> None:
    """Join two nodes by ``links`` parallel links of ``bits_per_second`` each (per direction)."""
    if graph.has_edge(a, b):
        raise TopologyError(f"link {a} - {b} exists already; for a trunk, set links=2")
    graph.add_edge(a, b, bits_per_second=bits_per_second * links, latency_seconds=latency_seconds, links=links)


def hosts(graph: Graph, *, role: str | None = None) -> list[str]:
    """Names of all hosts (of one role when given), in the order they were built."""
    return [n for n, d in graph.nodes(data=True) if d["kind"] == "host" and role in (None, d["role"])]


def switches(graph: Graph, *, role: str | None = None) -> list[str]:
    """Names of all switches (of one role when given), in the order they were built."""
    return [n for n, d in graph.nodes(data=True) if d["kind"] == "switch" and role in (None, d["role"])]


def bandwidth(graph: Graph, a: str, b: str) -> float:
    """Bits per second, in each direction, of the edge between two neighbours."""
    return float(graph.edges[a, b]["bits_per_second"])


def graph_of(cluster: Cluster) -> Graph:
    """A Clos network that ``mlt.planners.psnet.clos`` built, whose names give each node's role and index."""
    graph: Graph = nx.Graph(name=cluster.name)
    for name in cluster.nodes:
        part = cluster.host_by_name.get(name) or cluster.switch_by_name[name]
        role, *_, index = name.split("-")
        group = -1 if part.module is None else part.module
        if isinstance(part, Host):
            add_host(graph, name, group=group, index=int(index))
        else:
            add_switch(graph, name, role=role, level=part.tier, group=group, index=int(index))
    for link in cluster.links:
        add_link(graph, link.a, link.b, bits_per_second=link.bandwidth, latency_seconds=link.delay)
    return graph
