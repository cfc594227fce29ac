"""Folded Clos networks: the k-ary fat-tree and the leaf-spine.

PSNet's baselines (PSNet, section 4, figure 5), and the networks in the evaluations of ALEPH (320 servers under 32 edge
switches; 300 servers under 30 leaves) and ARO (24 + 24 switches, 576 servers). Attributes: see ``graph``.

Deliberately absent: routing, roles of hosts (worker or parameter server), programmable switches. These are decisions
about a network, not part of it.
"""

from __future__ import annotations

import networkx as nx

from mlt.planners.psnet.checks import TopologyError, require_count, require_not_negative, require_positive
from mlt.planners.psnet.graph import (
    DEFAULT_BITS_PER_SECOND,
    DEFAULT_LATENCY_SECONDS,
    Graph,
    add_host,
    add_link,
    add_switch,
)


def fat_tree(
    k: int,
    *,
    hosts_per_edge: int | None = None,
    host_bits_per_second: float = DEFAULT_BITS_PER_SECOND,
    fabric_bits_per_second: float | None = None,
    latency_seconds: float = DEFAULT_LATENCY_SECONDS,
) -> Graph:
    """The k-ary fat-tree: k pods of k/2 edge and k/2 aggregation switches, (k/2)^2 core switches.

    Aggregation switch ``a`` of every pod is connected to core switches ``a*k/2 .. a*k/2 + k/2 - 1``. Nodes are named
    ``host-p-e-h``, ``edge-p-e``, ``aggregation-p-a`` and ``core-c``.

    hosts_per_edge: k/2 by default, which makes k^3/4 hosts; another number changes only the hosts, not the switches
        (ALEPH's 320 servers are k = 8 with 10 hosts per edge switch).
    fabric_bits_per_second: every link between switches; the host links' bandwidth by default. The paper's
        oversubscription r is ``fabric = host / r`` with k/2 hosts per edge switch (PSNet, equation 7).
    """
    require_count("k (ports per switch)", k, minimum=2)
    if k % 2:
        raise TopologyError(f"a fat-tree needs an even number of ports per switch, got k = {k}")
    half = k // 2
    per_edge = require_count("hosts_per_edge", half if hosts_per_edge is None else hosts_per_edge)
    host_rate = require_positive("host_bits_per_second", host_bits_per_second)
    fabric_rate = require_positive("fabric_bits_per_second", fabric_bits_per_second or host_rate)
    require_not_negative("latency_seconds", latency_seconds)

    graph: Graph = nx.Graph(
        name="fat-tree", k=k, hosts_per_edge=per_edge, oversubscription=per_edge * host_rate / (half * fabric_rate)
    )
    for core in range(half * half):
        add_switch(graph, f"core-{core}", role="core", level=3, index=core)
    for pod in range(k):
        for a in range(half):
            add_switch(graph, f"aggregation-{pod}-{a}", role="aggregation", level=2, group=pod, index=a)
            for core in range(a * half, (a + 1) * half):
                add_link(
                    graph,
                    f"aggregation-{pod}-{a}",
                    f"core-{core}",
                    bits_per_second=fabric_rate,
                    latency_seconds=latency_seconds,
                )
        for e in range(half):
            edge = add_switch(graph, f"edge-{pod}-{e}", role="edge", level=1, group=pod, index=e)
            for a in range(half):
                add_link(
                    graph,
                    edge,
                    f"aggregation-{pod}-{a}",
                    bits_per_second=fabric_rate,
                    latency_seconds=latency_seconds,
                )
            for h in range(per_edge):
                host = add_host(graph, f"host-{pod}-{e}-{h}", group=pod, index=e * per_edge + h)
                add_link(graph, host, edge, bits_per_second=host_rate, latency_seconds=latency_seconds)
    return graph


def leaf_spine(
    leaves: int,
    spines: int,
    *,
    hosts_per_leaf: int,
    host_bits_per_second: float = DEFAULT_BITS_PER_SECOND,
    fabric_bits_per_second: float | None = None,
    latency_seconds: float = DEFAULT_LATENCY_SECONDS,
) -> Graph:
    """Every leaf is connected to every spine by one link; hosts are under the leaves.

    Nodes are named ``host-l-h``, ``leaf-l`` and ``spine-s``. ``fabric_bits_per_second`` is each leaf-spine link, by
    default the host links' bandwidth.
    """
    require_count("leaves", leaves)
    require_count("spines", spines)
    require_count("hosts_per_leaf", hosts_per_leaf)
    host_rate = require_positive("host_bits_per_second", host_bits_per_second)
    fabric_rate = require_positive("fabric_bits_per_second", fabric_bits_per_second or host_rate)
    require_not_negative("latency_seconds", latency_seconds)

    graph: Graph = nx.Graph(
        name="leaf-spine",
        leaves=leaves,
        spines=spines,
        hosts_per_leaf=hosts_per_leaf,
        oversubscription=hosts_per_leaf * host_rate / (spines * fabric_rate),
    )
    for s in range(spines):
        add_switch(graph, f"spine-{s}", role="spine", level=2, index=s)
    for leaf_index in range(leaves):
        leaf = add_switch(graph, f"leaf-{leaf_index}", role="leaf", level=1, index=leaf_index)
        for s in range(spines):
            add_link(graph, leaf, f"spine-{s}", bits_per_second=fabric_rate, latency_seconds=latency_seconds)
        for h in range(hosts_per_leaf):
            host = add_host(graph, f"host-{leaf_index}-{h}", index=leaf_index * hosts_per_leaf + h)
            add_link(graph, host, leaf, bits_per_second=host_rate, latency_seconds=latency_seconds)
    return graph
