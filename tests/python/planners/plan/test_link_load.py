"""Link loads: shortest-path spreading, planned routes with aggregation, results on the way back."""

from __future__ import annotations

import itertools

import networkx as nx
import numpy as np
import pytest
from checks import names
from hypothesis import given, settings
from hypothesis import strategies as st

from mlt.planners.cluster import Cluster, Host, Job, Link, Switch
from mlt.planners.plan import (
    Aggregation,
    InfeasibleError,
    PipelineUse,
    Route,
    Routing,
    ServerShare,
    TaskRoutes,
    WorkerCluster,
)
from mlt.planners.plan.link_load import (
    Demand,
    aggregation_demands,
    all_to_all_loads,
    arc_bandwidths,
    most_loaded,
    parameter_server_demands,
    ring_demands,
    routed_loads,
    spread_over_shortest_paths,
    with_results,
)


def leaf_spine(*, leaves: int = 3, spines: int = 2, per_leaf: int = 2, rate: float = 10e9) -> Cluster:
    hosts = tuple(Host(name=f"h{i}", bandwidth=rate) for i in range(leaves * per_leaf))
    switches = [Switch(name=f"leaf{i}") for i in range(leaves)] + [
        Switch(name=f"spine{i}", tier=2) for i in range(spines)
    ]
    links = [Link(a=f"h{i}", b=f"leaf{i // per_leaf}", bandwidth=rate) for i in range(leaves * per_leaf)]
    links += [Link(a=f"leaf{i}", b=f"spine{j}", bandwidth=rate) for i in range(leaves) for j in range(spines)]
    job = Job(
        name="j", workers=tuple(f"h{i}" for i in range(len(hosts) - 1)), servers=(hosts[-1].name,), model_size=1e9
    )
    return Cluster(hosts=hosts, switches=tuple(switches), links=tuple(links), jobs=(job,))


def test_spread__splits_over_equal_paths() -> None:
    loads = spread_over_shortest_paths(leaf_spine(), [Demand("h0", "h2", 8.0)])
    assert loads["h0", "leaf0"] == 8
    assert loads["leaf0", "spine0"] == loads["leaf0", "spine1"] == 4
    assert loads["leaf1", "h2"] == 8
    assert ("leaf0", "h1") not in loads


def test_spread__stays_in_the_rack() -> None:
    loads = spread_over_shortest_paths(leaf_spine(), [Demand("h0", "h1", 8.0), Demand("h0", "h0", 5.0)])
    assert loads == {("h0", "leaf0"): 8.0, ("leaf0", "h1"): 8.0}


def test_spread__hosts_do_not_forward_and_a_lost_host_is_named() -> None:
    hosts = tuple(Host(name=name, bandwidth=1) for name in "abc")
    cluster = Cluster(hosts=hosts, links=(Link(a="a", b="b", bandwidth=1), Link(a="b", b="c", bandwidth=1)))
    with pytest.raises(InfeasibleError, match=names("connectivity", "'a' to 'c'")):
        spread_over_shortest_paths(cluster, [Demand("a", "c", 1)], job="j")


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), leaves=st.integers(1, 4), spines=st.integers(1, 3))
def test_spread__equals_an_average_over_all_paths(seed: int, leaves: int, spines: int) -> None:
    # In a leaf-spine network every shortest path is equally likely, so networkx' list of paths is an independent check.
    cluster = leaf_spine(leaves=leaves, spines=spines)
    graph = nx.Graph([(link.a, link.b) for link in cluster.links])
    rng = np.random.default_rng(seed)
    demands = [Demand(*map(str, rng.choice(list(cluster.host_by_name), 2, replace=False)), 1.0) for _ in range(5)]
    expected: dict[tuple[str, str], float] = {}
    for demand in demands:
        paths = list(nx.all_shortest_paths(graph, demand.source, demand.destination))
        for path in paths:
            for arc in itertools.pairwise(path):
                expected[arc] = expected.get(arc, 0.0) + 1 / len(paths)
    assert spread_over_shortest_paths(cluster, demands) == pytest.approx(expected)


def test_arc_bandwidths__parallel_cables_add_up_and_nics_cap() -> None:
    cluster = Cluster(
        hosts=(Host(name="h", bandwidth=15), Host(name="g", bandwidth=100)),
        switches=(Switch(name="s"),),
        links=(Link(a="h", b="s", bandwidth=10), Link(a="h", b="s", bandwidth=10), Link(a="s", b="g", bandwidth=10)),
    )
    assert arc_bandwidths(cluster) == {("h", "s"): 15, ("s", "h"): 15, ("s", "g"): 10, ("g", "s"): 10}


def test_routed_loads__streams_merge_in_one_pipeline_only() -> None:
    def route(worker: str, pipeline: int) -> Route:
        use = (PipelineUse(switch="leaf0", pipeline=pipeline),)
        return Route(
            source=worker, destination="h5", path=(worker, "leaf0", "spine0", "leaf2", "h5"), aggregated_at=use
        )

    task = TaskRoutes(server="h5", rate=2.0, routes=(route("h0", 0), route("h1", 0), route("h2", 1)))
    loads = routed_loads(Routing(method="by-hand", tasks=(task,)))
    assert loads["h1", "leaf0"] == 2
    assert loads["leaf0", "spine0"] == 4  # one stream per pipeline
    assert loads["leaf2", "h5"] == 4


def test_demands__of_each_aggregation() -> None:
    cluster = leaf_spine()
    job = cluster.jobs[0]
    tree = Aggregation(
        method="by-hand",
        clusters=(WorkerCluster(aggregator="h0", members=("h1", "h2")),),
        direct=("h3", "h4"),
        shares=(ServerShare(server="h5", share=1.0),),
        rate=1,
        time=1,
    )
    assert sorted((d.source, d.destination) for d in aggregation_demands(tree, rate=1)) == [
        ("h0", "h5"), ("h1", "h0"), ("h2", "h0"), ("h3", "h5"), ("h4", "h5"),
    ]  # fmt: skip
    assert len(parameter_server_demands(cluster, job, rate=1)) == 5
    assert [(d.source, d.destination) for d in ring_demands(job, rate=1)][-1] == ("h4", "h0")


def test_with_results__adds_the_results_traffic() -> None:
    assert with_results({("a", "b"): 1.0, ("b", "a"): 2.0}) == {("a", "b"): 3.0, ("b", "a"): 3.0}


def test_most_loaded__by_utilisation() -> None:
    assert most_loaded({("a", "b"): 5.0, ("b", "c"): 6.0}, {("a", "b"): 5.0, ("b", "c"): 60.0}) == (("a", "b"), 1.0)
    assert most_loaded({}, {}) is None


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), leaves=st.integers(1, 4), double_homed=st.booleans())
def test_all_to_all__equals_its_streams_one_by_one(seed: int, leaves: int, double_homed: bool) -> None:
    cluster = leaf_spine(leaves=leaves, per_leaf=3)
    if double_homed and leaves > 1:  # like a PSNet server: a NIC on two leaves
        extra = (Link(a="h0", b="leaf1", bandwidth=10e9), Link(a="h4", b="leaf0", bandwidth=10e9))
        cluster = Cluster(hosts=cluster.hosts, switches=cluster.switches, links=(*cluster.links, *extra))
    rng = np.random.default_rng(seed)
    names = list(cluster.host_by_name)
    workers = [name for name in names if rng.random() < 0.7] or names[:1]
    loads = {name: float(rng.integers(1, 9)) for name in names if rng.random() < 0.7}
    streams = [Demand(worker, service, load) for worker in workers for service, load in loads.items()]
    expected = spread_over_shortest_paths(cluster, streams)
    found = {arc: load for arc, load in all_to_all_loads(cluster, workers, loads).items() if load > 0}
    assert found == pytest.approx(expected)
