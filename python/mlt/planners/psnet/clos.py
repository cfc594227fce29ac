"""Folded Clos networks as cluster files: the k-ary fat-tree and the leaf-spine.

PSNet's baselines (PSNet, section 4, figure 5), and the networks in the evaluations of ALEPH (320 servers under 32 edge
switches; 300 servers under 30 leaves) and ARO (24 + 24 switches, 576 servers).

Deliberately absent: jobs, roles of hosts (worker or parameter server), programmable switches. These are decisions about
a network, not part of it.
"""

from __future__ import annotations

from mlt.planners.cluster import Cluster, Host, Link, Switch
from mlt.planners.psnet.checks import (
    DEFAULT_BITS_PER_SECOND,
    DEFAULT_LATENCY_SECONDS,
    TopologyError,
    require_count,
    require_not_negative,
    require_positive,
)


class _Builder:
    """Hosts, switches and links in the order in which they are added, which numbers the ports."""

    def __init__(self, host_rate: float, fabric_rate: float | None, delay: float) -> None:
        self.host_rate = require_positive("host_bits_per_second", host_rate)
        self.fabric_rate = require_positive("fabric_bits_per_second", host_rate if fabric_rate is None else fabric_rate)
        self.delay = require_not_negative("latency_seconds", delay)
        self.hosts: list[Host] = []
        self.switches: list[Switch] = []
        self.links: list[Link] = []

    def switch(self, name: str, *lower: str, tier: int, pod: int | None = None) -> str:
        """A switch with a link to each of ``lower``."""
        self.switches.append(Switch(name=name, tier=tier, module=pod))
        self.links += [Link(a=name, b=end, bandwidth=self.fabric_rate, delay=self.delay) for end in lower]
        return name

    def rack(self, name: str, hosts: list[str], *, pod: int | None = None) -> None:
        """A switch above ``hosts``."""
        self.switches.append(Switch(name=name, module=pod))
        self.hosts += [Host(name=host, bandwidth=self.host_rate, module=pod) for host in hosts]
        self.links += [Link(a=name, b=host, bandwidth=self.host_rate, delay=self.delay) for host in hosts]

    def cluster(self, name: str) -> Cluster:
        return Cluster(name=name, hosts=tuple(self.hosts), switches=tuple(self.switches), links=tuple(self.links))


def fat_tree(
    k: int,
    *,
    hosts_per_edge: int | None = None,
    host_bits_per_second: float = DEFAULT_BITS_PER_SECOND,
    fabric_bits_per_second: float | None = None,
    latency_seconds: float = DEFAULT_LATENCY_SECONDS,
) -> Cluster:
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
    build = _Builder(host_bits_per_second, fabric_bits_per_second, latency_seconds)
    for core in range(half * half):
        build.switch(f"core-{core}", *(f"aggregation-{pod}-{core // half}" for pod in range(k)), tier=3)
    for pod in range(k):
        edges = [f"edge-{pod}-{e}" for e in range(half)]
        for a in range(half):
            build.switch(f"aggregation-{pod}-{a}", *edges, tier=2, pod=pod)
        for e, edge in enumerate(edges):
            build.rack(edge, [f"host-{pod}-{e}-{h}" for h in range(per_edge)], pod=pod)
    return build.cluster("fat-tree")


def leaf_spine(
    leaves: int,
    spines: int,
    *,
    hosts_per_leaf: int,
    host_bits_per_second: float = DEFAULT_BITS_PER_SECOND,
    fabric_bits_per_second: float | None = None,
    latency_seconds: float = DEFAULT_LATENCY_SECONDS,
) -> Cluster:
    """Every leaf is connected to every spine by one link; hosts are under the leaves.

    Nodes are named ``host-l-h``, ``leaf-l`` and ``spine-s``. ``fabric_bits_per_second`` is each leaf-spine link, by
    default the host links' bandwidth.
    """
    require_count("leaves", leaves)
    require_count("spines", spines)
    require_count("hosts_per_leaf", hosts_per_leaf)
    build = _Builder(host_bits_per_second, fabric_bits_per_second, latency_seconds)
    for s in range(spines):
        build.switch(f"spine-{s}", *(f"leaf-{leaf}" for leaf in range(leaves)), tier=2)
    for leaf in range(leaves):
        build.rack(f"leaf-{leaf}", [f"host-{leaf}-{h}" for h in range(hosts_per_leaf)])
    return build.cluster("leaf-spine")
