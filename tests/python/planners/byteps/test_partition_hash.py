"""Partitions find their service by hashing alone."""

from __future__ import annotations

import itertools

import pytest
from example_clusters import assignment
from hypothesis import given
from hypothesis import strategies as st

from mlt.planners.byteps.partition_hash import (
    closed_form_hash_space,
    hash_ranges,
    partitions,
    service_of,
    stable_hash,
)

MIB = 2**20


def test_stable_hash__does_not_change_between_versions() -> None:
    # A worker of one version must agree with a worker of another: these values may never change.
    assert stable_hash("") == 0xF52A15E9A9B5E89B
    assert stable_hash("layer1.weight:0") == 0x84DD09B83919C1DD


def test_partitions__cut_tensors_into_parts() -> None:
    parts = list(partitions({"a": 9 * MIB, "b": 1}))
    assert [(p.tensor, p.index, p.size) for p in parts] == [
        ("a", 0, 4 * MIB), ("a", 1, 4 * MIB), ("a", 2, MIB), ("b", 0, 1),
    ]  # fmt: skip
    with pytest.raises(ValueError, match="more than zero"):
        list(partitions({"a": 1}, partition_bytes=0))


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


def test_service_of__follows_the_loads() -> None:
    section = assignment(8, 4)
    parts = list(partitions({f"t{i}": 4 * MIB for i in range(40_000)}))
    loads = [0] * len(section.services)
    for part in parts:
        loads[service_of(section, part)] += part.size
    total = sum(loads)
    for service, load in zip(section.services, loads, strict=True):
        assert load / total == pytest.approx(service.load_bytes / 1e9, rel=0.1)
    assert sum(1 for part in parts[:500] if loads[service_of(section, part)] > 0) == 500


def test_service_of__empty_ranges_get_nothing() -> None:
    section = assignment(4, 4)  # k = n: workers hold nothing
    parts = list(partitions({f"t{i}": 4 * MIB for i in range(300)}))
    assert {section.services[service_of(section, part)].colocated for part in parts} == {False}
