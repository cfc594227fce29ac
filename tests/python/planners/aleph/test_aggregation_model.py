"""Rates and times of aggregation: the paper's motivating example, bottlenecks, and the search for the best rate."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlt.planners.aleph.aggregation_model import (
    Resources,
    bottleneck,
    capacities,
    direct_clustering,
    fastest_clustering,
    fewest_streams,
    hierarchical_time,
)
from mlt.planners.aleph.clustering import Clustering, cluster_workers
from mlt.planners.aleph.clustering_greedy import greedy_clustering
from mlt.planners.aleph.worker_graph import grouped_graph
from mlt.planners.byteps.load_assignment import ring_all_reduce_time
from studies.aleph.baselines import violations
from studies.aleph.listed_graph import complete_graph
from studies.aleph.simulation import usage


def resources(
    workers: list[float], servers: list[float], *, cores: float = 64, per_gbit: float = 0.06, size: float = 1e9
) -> Resources:
    return Resources(
        bandwidths=np.array(workers),
        cores=np.full(len(workers), float(cores)),
        server_bandwidths=np.array(servers),
        cores_per_gbit=per_gbit,
        model_bytes=size,
    )


def test_motivating_example() -> None:
    # Table 1: 4.2 Gb, workers 10, 10, 10, 30 and a server of 20 Gbit/s.
    example = resources([10e9, 10e9, 10e9, 30e9], [20e9], size=4.2e9 / 8)
    capacity = capacities(example, rate=example.slowest_worker)
    assert capacity.tolist() == [0, 0, 0, 2]
    clustering = cluster_workers(graph=complete_graph(4), capacity=capacity)
    assert hierarchical_time(direct_clustering(4), example) == pytest.approx(0.84)
    assert ring_all_reduce_time(model_bytes=4.2e9 / 8, worker_bandwidths=example.bandwidths.tolist()) == pytest.approx(
        0.63
    )
    assert hierarchical_time(clustering, example) == pytest.approx(0.42)
    assert clustering.aggregators == [3]


def test_capacities__the_tighter_of_network_and_cpu() -> None:
    assert capacities(resources([10e9, 50e9], [1e9], cores=64), rate=10e9).tolist() == [0, 2]  # at most n others
    wide = resources([10e9] * 8 + [80e9], [1e9], cores=1.3)
    assert capacities(wide, rate=10e9)[-1] == 2  # 1.3 cores / 0.6 per member
    assert capacities(resources([30e9] * 3, [1e9], per_gbit=0), rate=10e9).tolist() == [2, 2, 2]


def test_capacities__survive_rounding() -> None:
    assert capacities(resources([0.3e9] * 3, [1e9]), rate=0.1e9).tolist() == [2, 2, 2]


@pytest.mark.parametrize(
    ("workers", "servers", "cores", "head", "rate", "words"),
    [
        ([10e9] * 4, [20e9], 64, [0, 1, 2, 3], 5e9, "servers"),
        ([10e9] * 4, [90e9], 64, [0, 0, 0, 3], 10e9 / 3, "bandwidth of aggregator"),
        ([10e9] * 4, [90e9], 64, [0, 1, 2, 3], 10e9, "slowest worker"),
        ([90e9] * 4, [90e9], 0.6, [0, 0, 2, 3], 10e9, "CPU of aggregator"),
    ],
)
def test_bottleneck__names_the_bottleneck(
    workers: list[float], servers: list[float], cores: float, head: list[int], rate: float, words: str
) -> None:
    found = bottleneck(Clustering(head=np.array(head), method="by hand"), resources(workers, servers, cores=cores))
    assert found.rate == pytest.approx(rate)
    assert words in found.constraint


def test_usage__counts_members_twice() -> None:
    # Figure 13's 188 and 12 Gbit/s: 12 aggregators over 100 workers of 1 Gbit/s.
    head = np.arange(100) % 12
    assert usage(Clustering(head=head, method="by hand"), rate=1e9) == (188e9, 12e9)


def test_resources__need_workers_and_servers() -> None:
    with pytest.raises(ValueError, match="at least one"):
        resources([1e9], [])


GROUPED = st.lists(st.tuples(st.integers(0, 3), st.floats(1e9, 100e9), st.floats(0.05, 8)), min_size=1, max_size=25)


@given(GROUPED, st.floats(1e8, 1e11))
def test_fewest_streams__is_what_greedy_finds(workers: list[tuple[int, float, float]], rate: float) -> None:
    graph = grouped_graph([group for group, _, _ in workers])
    capacity = capacities(resources([b for _, b, _ in workers], [1e9]), rate=rate)
    assert fewest_streams(graph, capacity) == greedy_clustering(graph=graph, capacity=capacity).streams


@settings(max_examples=60, deadline=None)
@given(
    GROUPED, st.lists(st.floats(1e9, 100e9), min_size=1, max_size=3), st.integers(0, 30), st.floats(1, 8), st.booleans()
)
def test_fastest__more_bandwidth_or_cores_is_never_slower(
    workers: list[tuple[int, float, float]], servers: list[float], which: int, factor: float, cpu: bool
) -> None:
    graph = grouped_graph([group for group, _, _ in workers])

    def time(bandwidths: list[float], cores: list[float]) -> float:
        found = Resources(
            bandwidths=np.array(bandwidths[: len(workers)]),
            cores=np.array(cores),
            server_bandwidths=np.array(bandwidths[len(workers) :]),
            cores_per_gbit=0.06,
            model_bytes=1e9,
        )
        clustering = fastest_clustering(graph, found)
        reached = bottleneck(clustering, found).rate
        limit = capacities(found, rate=reached * (1 - 1e-9))
        assert violations(clustering, graph=graph, capacity=limit) == []
        assert hierarchical_time(clustering, found) <= hierarchical_time(direct_clustering(graph.size), found) * (
            1 + 1e-9
        )
        return hierarchical_time(clustering, found)

    bandwidths, cores = [*(b for _, b, _ in workers), *servers], [c for _, _, c in workers]
    before = time(bandwidths, cores)
    if cpu:
        cores[which % len(cores)] *= factor
    else:
        bandwidths[which % len(bandwidths)] *= factor
    assert time(bandwidths, cores) <= before * (1 + 1e-8)


def test_fastest__beats_the_papers_fixed_rate_when_servers_are_short() -> None:
    # At 10 Gbit/s no worker can aggregate; at half of it the 15s lead two each.
    example = resources([10e9, 15e9, 15e9, 15e9], [20e9])
    fixed = greedy_clustering(graph=complete_graph(4), capacity=capacities(example, rate=10e9))
    assert hierarchical_time(fastest_clustering(complete_graph(4), example), example) < hierarchical_time(
        fixed, example
    )
