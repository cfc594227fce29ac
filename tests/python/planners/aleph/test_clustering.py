"""M-WCHA: the paper's examples, feasibility, determinism, and its ratio to the optimum."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlt.planners.aleph.clustering import (
    AS_PRINTED,
    REPAIRED,
    Clustering,
    Reading,
    best_of_seeds,
    cluster_workers,
    round_up,
)
from mlt.planners.aleph.worker_graph import WorkerGraph, grouped_graph
from studies.aleph.baselines import violations
from studies.aleph.listed_graph import complete_graph, graph_from_edges, random_graph

READINGS = [REPAIRED, AS_PRINTED, Reading(fill=False), Reading(weakest_first=False), Reading(redraw=False)]


@st.composite
def problems(draw: st.DrawFn) -> tuple[WorkerGraph, np.ndarray]:
    size = draw(st.integers(1, 25))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    capacity = rng.integers(0, draw(st.integers(1, 9)), size)
    if draw(st.booleans()):
        return grouped_graph(rng.integers(0, 4, size)), capacity
    return random_graph(size, edge_probability=draw(st.floats(0, 1)), rng=rng), capacity


@pytest.mark.parametrize("seed", range(20))
def test_cluster_workers__testbed_example(seed: int) -> None:
    # Section 6.3: 30 Gbit/s leads two of the 10s, each 20 leads one, the last 10 sends straight to the server.
    clustering = cluster_workers(graph=complete_graph(8), capacity=np.array([2, 1, 1, 0, 0, 0, 0, 0]), seed=seed)
    assert clustering.aggregators == [0, 1, 2]
    assert clustering.member_counts[:3].tolist() == [2, 1, 1]
    assert len(clustering.direct) == 1
    assert clustering.streams == 4


@settings(max_examples=150, deadline=None)
@given(problem=problems(), seed=st.integers(0, 1000), reading=st.sampled_from(READINGS))
def test_cluster_workers__is_feasible(problem: tuple[WorkerGraph, np.ndarray], seed: int, reading: Reading) -> None:
    graph, capacity = problem
    clustering = cluster_workers(graph=graph, capacity=capacity, seed=seed, reading=reading)
    assert violations(clustering, graph=graph, capacity=capacity) == []
    assert clustering.streams == len(clustering.aggregators) + len(clustering.direct)


@settings(max_examples=30, deadline=None)
@given(problem=problems(), seed=st.integers(0, 1000))
def test_cluster_workers__same_seed_same_clustering(problem: tuple[WorkerGraph, np.ndarray], seed: int) -> None:
    graph, capacity = problem
    first, second = (cluster_workers(graph=graph, capacity=capacity, seed=seed) for _ in range(2))
    assert first.head.tolist() == second.head.tolist()


def test_cluster_workers__repaired_run_ends_with_no_candidate_left() -> None:
    # Repair 7: no worker is left that could still aggregate a free neighbour.
    rng = np.random.default_rng(3)
    graph, capacity = random_graph(40, edge_probability=0.1, rng=rng), rng.integers(0, 4, 40)
    clustering = cluster_workers(graph=graph, capacity=capacity, seed=3)
    free = set(clustering.direct)
    for worker in free:
        assert capacity[worker] == 0 or not free & set(graph.neighbours(worker).tolist())


def test_cluster_workers__filling_beats_the_coin() -> None:
    rng = np.random.default_rng(0)
    capacity = rng.integers(0, 6, 200)
    graph = complete_graph(200)
    streams = [
        cluster_workers(graph=graph, capacity=capacity, seed=1, reading=r).streams for r in (REPAIRED, AS_PRINTED)
    ]
    assert streams[0] < streams[1]


def test_cluster_workers__no_worker_can_aggregate() -> None:
    clustering = cluster_workers(graph=complete_graph(5), capacity=np.zeros(5, dtype=np.int64))
    assert clustering.direct == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("capacity", [[1, 2], [1, -1, 0]])
def test_cluster_workers__rejects_bad_capacities(capacity: list[int]) -> None:
    with pytest.raises(ValueError, match="expected 3 capacities"):
        cluster_workers(graph=complete_graph(3), capacity=np.array(capacity))


@pytest.mark.parametrize("shape", ["complete", "racks", "sparse"])
def test_cluster_workers__ten_thousand_workers_in_under_ten_seconds(shape: str) -> None:
    n = 10_000
    rng = np.random.default_rng(0)
    capacity = rng.integers(0, 9, n)
    racks = np.arange(n) // 40
    graph = {
        "complete": lambda: complete_graph(n, nearness=[racks]),
        "racks": lambda: grouped_graph(racks),
        "sparse": lambda: graph_from_edges(n, map(tuple, rng.integers(0, n, (20 * n, 2)).tolist())),
    }[shape]()
    start = time.monotonic()
    clustering = cluster_workers(graph=graph, capacity=capacity)
    assert time.monotonic() - start < 10
    assert clustering.streams < n / 3


def test_best_of_seeds__is_no_worse_than_its_first() -> None:
    rng = np.random.default_rng(5)
    graph, capacity = random_graph(50, edge_probability=0.2, rng=rng), rng.integers(0, 5, 50)
    first = cluster_workers(graph=graph, capacity=capacity, seed=11)
    assert best_of_seeds(graph=graph, capacity=capacity, seed=11).streams <= first.streams


def test_round_up__least_power_of_two() -> None:
    assert round_up(np.array([0, 1, 2, 3, 4, 5, 8, 9])).tolist() == [0, 1, 2, 4, 4, 8, 8, 16]


@pytest.mark.parametrize(
    ("head", "words"),
    [
        ([1, 2, 2], "not an aggregator"),
        ([1, 1, 1], "capacity is 1"),
        ([0, 2, 2], "cannot reach"),
        ([0, 1], "cover"),
    ],
)
def test_violations__names_the_broken_constraint(head: list[int], words: str) -> None:
    graph = graph_from_edges(3, [(0, 1)])
    clustering = Clustering(head=np.array(head), method="by hand")
    assert words in " ".join(violations(clustering, graph=graph, capacity=np.ones(3, dtype=np.int64)))
