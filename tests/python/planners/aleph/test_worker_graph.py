"""Groups, and the studies' listed edges, answer the same questions the same way."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlt.planners.aleph.worker_graph import WorkerGraph, grouped_graph, worker_graph
from mlt.planners.cluster import Cluster, Host, Job, Link, Switch
from studies.aleph.listed_graph import complete_graph, graph_from_edges


def spelled_out(groups: list[int]) -> WorkerGraph:
    n = len(groups)
    return graph_from_edges(n, [(i, j) for i in range(n) for j in range(i) if groups[i] == groups[j]])


@given(st.lists(st.integers(0, 4), min_size=1, max_size=15), st.integers(0, 2**32 - 1))
def test_groups__equal_their_spelled_out_edges(groups: list[int], seed: int) -> None:
    a, b = grouped_graph(groups), spelled_out(groups)
    rng = np.random.default_rng(seed)
    whole, real, chosen = rng.integers(0, 9, a.size), rng.random(a.size), rng.random(a.size) < 0.5
    assert a.neighbour_max(whole).tolist() == b.neighbour_max(whole).tolist()
    assert a.neighbour_count(chosen).tolist() == b.neighbour_count(chosen).tolist()
    assert a.neighbour_sum(real).tolist() == pytest.approx(b.neighbour_sum(real).tolist())
    for worker in range(a.size):
        assert a.neighbours(worker).tolist() == b.neighbours(worker).tolist()


def test_graph_from_edges__drops_loops_and_repeats() -> None:
    graph = graph_from_edges(3, [(0, 1), (1, 0), (2, 2), (0, 1)])
    assert [graph.neighbours(w).tolist() for w in range(3)] == [[1], [0], []]
    with pytest.raises(ValueError, match="expected ends from 0 to 2"):
        graph_from_edges(3, [(0, 3)])


def test_complete_graph__everyone() -> None:
    assert complete_graph(3).neighbours(1).tolist() == [0, 2]


@pytest.fixture
def pods() -> tuple[Cluster, Job]:
    hosts = tuple(Host(name=f"h{i}", bandwidth=1) for i in range(8))
    switches = tuple(Switch(name=f"leaf{i}", module=i // 2) for i in range(4))
    links = tuple(Link(a=f"h{i}", b=f"leaf{i // 2}", bandwidth=1) for i in range(8))
    job = Job(name="j", workers=tuple(f"h{i}" for i in range(8)), model_size=1)
    return Cluster(hosts=hosts, switches=switches, links=links, jobs=(job,)), job


@pytest.mark.parametrize(("reach", "near"), [("rack", [1]), ("module", [1, 2, 3]), ("cluster", [1, 2, 3, 4, 5, 6, 7])])
def test_worker_graph__reach(pods: tuple[Cluster, Job], reach: str, near: list[int]) -> None:
    assert worker_graph(*pods, reach=reach).neighbours(0).tolist() == near  # type: ignore[arg-type]


def test_worker_graph__knows_what_is_near(pods: tuple[Cluster, Job]) -> None:
    racks, modules = worker_graph(*pods, reach="cluster").nearness
    assert len(set(racks.tolist())) == 4
    assert len(set(modules.tolist())) == 2
