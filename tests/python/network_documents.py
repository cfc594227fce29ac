"""Network documents read back, and networks compared: what tests need of ``mlt.planners.psnet.graph``."""

from __future__ import annotations

from typing import Any

import networkx as nx

from mlt.planners.psnet.graph import Graph


def from_document(document: dict[str, Any]) -> Graph:
    """The inverse of ``to_document``."""
    graph: Graph = nx.Graph(**document["graph"])
    for node in document["nodes"]:
        graph.add_node(node["name"], **{key: value for key, value in node.items() if key != "name"})
    for link in document["links"]:
        assert link["a"] in graph
        assert link["b"] in graph
        attributes = {key: value for key, value in link.items() if key not in ("a", "b")}
        graph.add_edge(link["a"], link["b"], **attributes)
    return graph


def same_network(a: Graph, b: Graph) -> bool:
    """Whether two graphs have the same nodes, links and attributes, in any order."""

    def key(graph: Graph) -> tuple[Any, Any]:
        nodes = {name: data for name, data in graph.nodes(data=True)}  # noqa: C416
        return nodes, {frozenset((u, v)): data for u, v, data in graph.edges(data=True)}

    return key(a) == key(b)
