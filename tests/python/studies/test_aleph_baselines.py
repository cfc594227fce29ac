"""Baselines: the exact optimum against brute force, greedy and M-WCHA against the optimum."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlt.planners.aleph.clustering_greedy import greedy_clustering
from mlt.planners.aleph.worker_graph import WorkerGraph, grouped_graph
from studies.aleph.baselines import balanced_clustering, exact_clustering, violations
from studies.aleph.listed_graph import complete_graph, random_graph
from studies.aleph.ratio import measure_ratios


def brute_force_streams(graph: WorkerGraph, capacity: np.ndarray) -> int:
    """Every assignment of heads, for a handful of workers."""
    n = graph.size
    reach = [[w, *(int(a) for a in graph.neighbours(w))] for w in range(n)]
    best = n
    for head in itertools.product(*reach):
        loads = [0] * n
        for worker, chosen in enumerate(head):
            if head[chosen] != chosen:
                break
            loads[chosen] += worker != chosen
        else:
            if all(load <= limit for load, limit in zip(loads, capacity, strict=True)):
                best = min(best, sum(1 for worker, chosen in enumerate(head) if worker == chosen))
    return best


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), size=st.integers(1, 6), density=st.floats(0, 1))
def test_exact__equals_brute_force(seed: int, size: int, density: float) -> None:
    rng = np.random.default_rng(seed)
    graph, capacity = random_graph(size, edge_probability=density, rng=rng), rng.integers(0, 4, size)
    exact, proven = exact_clustering(graph=graph, capacity=capacity)
    assert proven
    assert violations(exact, graph=graph, capacity=capacity) == []
    assert exact.streams == brute_force_streams(graph, capacity)


def test_exact__rejects_more_than_it_can_prove() -> None:
    with pytest.raises(ValueError, match="at most 60"):
        exact_clustering(graph=complete_graph(61), capacity=np.ones(61, dtype=np.int64))


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), size=st.integers(1, 30), groups=st.integers(1, 4))
def test_greedy__is_optimal_on_groups(seed: int, size: int, groups: int) -> None:
    rng = np.random.default_rng(seed)
    graph, capacity = grouped_graph(rng.integers(0, groups, size)), rng.integers(0, 6, size)
    greedy = greedy_clustering(graph=graph, capacity=capacity)
    assert violations(greedy, graph=graph, capacity=capacity) == []
    assert greedy.streams == exact_clustering(graph=graph, capacity=capacity)[0].streams


def test_greedy__is_feasible_on_explicit_edges() -> None:
    rng = np.random.default_rng(1)
    graph, capacity = random_graph(80, edge_probability=0.1, rng=rng), rng.integers(0, 6, 80)
    greedy = greedy_clustering(graph=graph, capacity=capacity)
    assert violations(greedy, graph=graph, capacity=capacity) == []


def test_balanced__sizes_differ_by_one_and_stay_near() -> None:
    racks = np.repeat(np.arange(5), 4)
    clustering = balanced_clustering(graph=complete_graph(20, nearness=[racks]), clusters=5, seed=2)
    assert sorted(clustering.member_counts[clustering.aggregators].tolist()) == [3] * 5
    assert all(racks[w] == racks[h] for w, h in enumerate(clustering.head))
    uneven = balanced_clustering(graph=complete_graph(20), clusters=6, seed=2)
    assert set((uneven.member_counts[uneven.aggregators] + 1).tolist()) == {3, 4}


def test_balanced__rejects_no_cluster() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        balanced_clustering(graph=complete_graph(2), clusters=0)


def test_ratio__within_the_bound_on_a_short_run() -> None:
    # The long run (1,000 graphs) is `python -m studies.aleph.ratio`; see docs/results/aleph/ratio.json.
    rows = measure_ratios(graphs=40, seed=100, max_workers=24)
    assert len(rows) == 40
    assert all(row.optimum <= row.streams <= row.bound for row in rows)
    assert np.mean([row.streams / row.optimum for row in rows]) < 1.5
