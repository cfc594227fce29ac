"""Ranges of hash values in proportion to the loads."""

from __future__ import annotations

import itertools

from example_clusters import assignment
from hypothesis import given
from hypothesis import strategies as st

from mlt.planners.byteps.partition_hash import closed_form_hash_space, hash_ranges


def test_hash_ranges__are_whole_in_the_papers_space() -> None:
    section = assignment(32, 16)
    assert section.hash_space == closed_form_hash_space(workers=32, servers=16) == 1504
    assert {s.hash_end - s.hash_begin for s in section.services if s.colocated} == {16}  # n - k
    assert {s.hash_end - s.hash_begin for s in section.services if not s.colocated} == {62}  # 2 (n - 1)


@given(st.lists(st.floats(0, 1e9), min_size=1, max_size=40).filter(lambda loads: sum(loads) > 1))
def test_hash_ranges__tile_the_space(loads: list[float]) -> None:
    space, ranges = hash_ranges(loads)
    assert ranges[0][0] == 0
    assert ranges[-1][1] == space
    assert all(a[1] == b[0] and a[0] <= a[1] for a, b in itertools.pairwise(ranges))
