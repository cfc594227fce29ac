"""Attributes of every network graph of this package, for planners and the simulator.

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

Graph attributes: ``name`` of the family and the parameters it was built from.
"""

from __future__ import annotations

import json
from typing import Any, TypeAlias

import networkx as nx

from mlt.planners.psnet.checks import TopologyError

Graph: TypeAlias = "nx.Graph[str]"

#: One way, per link; section 4.2 of the PSNet paper.
DEFAULT_LATENCY_SECONDS = 20e-6
DEFAULT_BITS_PER_SECOND = 10e9


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


def to_document(graph: Graph) -> dict[str, Any]:
    """A JSON-ready description: ``{"graph": {...}, "nodes": [...], "links": [...]}``, in build order."""
    return {
        "graph": dict(graph.graph),
        "nodes": [{"name": name, **data} for name, data in graph.nodes(data=True)],
        "links": [{"a": a, "b": b, **data} for a, b, data in graph.edges(data=True)],
    }


def dumps(graph: Graph) -> str:
    """The graph as JSON text, stable for equal graphs built in the same order."""
    return json.dumps(to_document(graph), indent=1)
