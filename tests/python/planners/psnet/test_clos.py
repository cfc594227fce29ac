from __future__ import annotations

from collections import Counter

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlt.planners.cluster import Cluster, Link
from mlt.planners.psnet.checks import TopologyError
from mlt.planners.psnet.clos import fat_tree, leaf_spine


def graph_of(cluster: Cluster) -> nx.Graph[str]:
    graph: nx.Graph[str] = nx.Graph()
    graph.add_nodes_from(cluster.nodes)
    graph.add_edges_from((link.a, link.b) for link in cluster.links)
    assert graph.number_of_edges() == len(cluster.links)
    return graph


def rate(cluster: Cluster, a: str, b: str) -> float:
    (link,) = [link for link in cluster.links if {link.a, link.b} == {a, b}]
    return link.bandwidth


@settings(deadline=None, max_examples=60)
@given(half=st.integers(1, 4))
def test_fat_tree__has_the_counts_of_the_k_ary_construction(half: int) -> None:
    k = 2 * half
    tree = fat_tree(k)
    assert len(tree.hosts) == k**3 // 4
    assert Counter(switch.tier for switch in tree.switches) == {1: k * half, 2: k * half, 3: half * half}
    assert all(len(tree.links_of[switch]) == k for switch in tree.switch_by_name)
    assert {link.bandwidth for link in tree.links} == {10e9}


def test_fat_tree__aleph_cluster_has_320_servers() -> None:
    tree = fat_tree(8, hosts_per_edge=10)
    counts = Counter(switch.name.partition("-")[0] for switch in tree.switches)
    assert (counts, len(tree.hosts)) == ({"core": 16, "aggregation": 32, "edge": 32}, 320)


def test_fat_tree__pods_are_modules_and_ports_count_from_the_top() -> None:
    tree = fat_tree(4)
    assert tree.host_by_name["host-2-1-0"].module == tree.switch_by_name["edge-2-1"].module == 2
    assert tree.switch_by_name["core-3"].module is None
    ports = {tree.peer(link, "aggregation-1-0"): tree.port(link, "aggregation-1-0")
             for link in tree.links_of["aggregation-1-0"]}  # fmt: skip
    assert ports == {"core-0": 0, "core-1": 1, "edge-1-0": 2, "edge-1-1": 3}


def test_leaf_spine__aro_cluster_has_576_servers() -> None:
    net = leaf_spine(24, 24, hosts_per_leaf=24, host_bits_per_second=100e9)
    assert len(net.hosts) == 576
    assert len(net.links) == 24 * 24 + 576
    assert {link.bandwidth for link in net.links} == {host.bandwidth for host in net.hosts} == {100e9}


def test_fat_tree__paths_between_pods_are_disjoint_over_all_cores() -> None:
    tree = graph_of(fat_tree(4))

    def paths_between(a: str, b: str) -> list[list[str]]:
        return list(nx.all_shortest_paths(tree, a, b))

    paths = paths_between("host-0-0-0", "host-3-1-1")
    assert len(paths) == 4
    assert {path[3] for path in paths} == {f"core-{n}" for n in range(4)}
    assert len(paths_between("host-0-0-0", "host-0-1-0")) == 2
    assert len(paths_between("host-0-0-0", "host-0-0-1")) == 1
    assert nx.edge_connectivity(tree, "edge-0-0", "edge-3-1") == 2


@settings(deadline=None, max_examples=60)
@given(leaves=st.integers(1, 5), spines=st.integers(1, 5), per_leaf=st.integers(1, 4))
def test_leaf_spine__every_leaf_sees_every_spine(leaves: int, spines: int, per_leaf: int) -> None:
    net = leaf_spine(leaves, spines, hosts_per_leaf=per_leaf)
    graph = graph_of(net)
    for leaf in (switch.name for switch in net.switches if switch.tier == 1):
        assert {switch.name for switch in net.switches if switch.tier == 2} <= set(graph.neighbors(leaf))
        assert graph.degree(leaf) == spines + per_leaf
    assert all(node.startswith("leaf-") for host in net.host_by_name for node in graph.neighbors(host))


def test_fat_tree__oversubscription_slows_the_fabric_only() -> None:
    tree = fat_tree(4, host_bits_per_second=10e9, fabric_bits_per_second=2e9, latency_seconds=1e-6)
    assert rate(tree, "host-0-0-0", "edge-0-0") == 10e9
    assert rate(tree, "edge-0-0", "aggregation-0-1") == rate(tree, "aggregation-0-1", "core-3") == 2e9
    assert tree.links[0] == Link(a="core-0", b="aggregation-0-0", bandwidth=2e9, delay=1e-6, a_port=0, b_port=0)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: fat_tree(5), "even number of ports"),
        (lambda: fat_tree(0), "at least 2, got 0"),
        (lambda: fat_tree(4, host_bits_per_second=float("nan")), "host_bits_per_second"),
        (lambda: leaf_spine(2, 0, hosts_per_leaf=1), "spines"),
        (lambda: leaf_spine(2, 2, hosts_per_leaf=1, fabric_bits_per_second=-1.0), "fabric_bits_per_second"),
    ],
)
def test_builders__reject_bad_parameters(build: object, message: str) -> None:
    assert callable(build)
    with pytest.raises(TopologyError, match=message):
        build()
