"""Members move to the nearest aggregator; nothing else changes."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from mlt.planners.aleph.clustering import Clustering, cluster_workers
from mlt.planners.aleph.clustering_locality import localise
from mlt.planners.aleph.worker_graph import grouped_graph
from studies.aleph.baselines import violations
from studies.aleph.listed_graph import complete_graph


def distance(clustering: Clustering, racks: np.ndarray) -> int:
    return int(np.count_nonzero(racks != racks[clustering.head]))


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), size=st.integers(1, 40), racks=st.integers(1, 6), groups=st.integers(1, 3))
def test_localise__keeps_sizes_and_feasibility(seed: int, size: int, racks: int, groups: int) -> None:
    rng = np.random.default_rng(seed)
    rack = rng.integers(0, racks, size)
    graph = grouped_graph(rack % groups, nearness=[rack, rack // 2])
    capacity = rng.integers(0, 5, size)
    before = cluster_workers(graph=graph, capacity=capacity, seed=1)
    after = localise(before, graph)
    assert violations(after, graph=graph, capacity=capacity) == []
    assert after.member_counts.tolist() == before.member_counts.tolist()
    assert distance(after, rack) <= distance(before, rack)


def test_localise__brings_members_home() -> None:
    racks = np.array([0, 0, 1, 1])
    crossed = Clustering(head=np.array([0, 2, 2, 0]), method="by hand")
    assert localise(crossed, complete_graph(4, nearness=[racks])).head.tolist() == [0, 0, 2, 2]
