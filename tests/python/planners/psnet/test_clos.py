from __future__ import annotations

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from network_documents import from_document, same_network

from mlt.planners.psnet import graph as g
from mlt.planners.psnet.clos import fat_tree, leaf_spine


@settings(deadline=None, max_examples=60)
@given(half=st.integers(1, 4))
def test_fat_tree__has_the_counts_of_the_k_ary_construction(half: int) -> None:
    k = 2 * half
    tree = fat_tree(k)
    assert len(g.hosts(tree)) == k**3 // 4
    assert len(g.switches(tree, role="core")) == half * half
    assert len(g.switches(tree, role="edge")) == len(g.switches(tree, role="aggregation")) == k * half
    assert all(tree.degree(switch) == k for switch in g.switches(tree))
    assert tree.graph["oversubscription"] == 1.0


def test_fat_tree__aleph_cluster_has_320_servers() -> None:
    tree = fat_tree(8, hosts_per_edge=10)
    counts = {role: len(g.switches(tree, role=role)) for role in ("core", "aggregation", "edge")}
    assert (counts, len(g.hosts(tree))) == ({"core": 16, "aggregation": 32, "edge": 32}, 320)


def test_leaf_spine__aro_cluster_has_576_servers() -> None:
    net = leaf_spine(24, 24, hosts_per_leaf=24, host_bits_per_second=100e9)
    assert len(g.hosts(net)) == 576
    assert net.number_of_edges() == 24 * 24 + 576
    assert {d["bits_per_second"] for _, _, d in net.edges(data=True)} == {100e9}


def test_fat_tree__paths_between_pods_are_disjoint_over_all_cores() -> None:
    tree = fat_tree(4)

    def paths_between(a: str, b: str) -> list[list[str]]:
        return list(nx.all_shortest_paths(tree, a, b))

    paths = paths_between("host-0-0-0", "host-3-1-1")
    assert len(paths) == 4
    assert {path[3] for path in paths} == set(g.switches(tree, role="core"))
    assert len(paths_between("host-0-0-0", "host-0-1-0")) == 2
    assert len(paths_between("host-0-0-0", "host-0-0-1")) == 1
    assert nx.edge_connectivity(tree, "edge-0-0", "edge-3-1") == 2


@settings(deadline=None, max_examples=60)
@given(leaves=st.integers(1, 5), spines=st.integers(1, 5), per_leaf=st.integers(1, 4))
def test_leaf_spine__every_leaf_sees_every_spine(leaves: int, spines: int, per_leaf: int) -> None:
    net = leaf_spine(leaves, spines, hosts_per_leaf=per_leaf)
    for leaf in g.switches(net, role="leaf"):
        assert set(g.switches(net, role="spine")) <= set(net.neighbors(leaf))
        assert net.degree(leaf) == spines + per_leaf
    assert net.graph["oversubscription"] == pytest.approx(per_leaf / spines)
    assert all(node.startswith("leaf-") for host in g.hosts(net) for node in net.neighbors(host))


def test_fat_tree__oversubscription_slows_the_fabric_only() -> None:
    tree = fat_tree(4, host_bits_per_second=10e9, fabric_bits_per_second=2e9)
    assert tree.graph["oversubscription"] == 5.0
    assert g.bandwidth(tree, "host-0-0-0", "edge-0-0") == 10e9
    assert g.bandwidth(tree, "edge-0-0", "aggregation-0-1") == g.bandwidth(tree, "aggregation-0-1", "core-3") == 2e9


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
    with pytest.raises(g.TopologyError, match=message):
        build()


def test_document__round_trip_keeps_the_network() -> None:
    tree = fat_tree(4)
    assert same_network(from_document(g.to_document(tree)), tree)
    other = fat_tree(4, fabric_bits_per_second=1e9)
    assert not same_network(other, tree)
