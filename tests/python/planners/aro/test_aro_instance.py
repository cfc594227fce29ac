from __future__ import annotations

from dataclasses import replace

import pytest
from routing_cases import figure_1

from mlt.planners.aro.instance import Instance, InstanceError, Link


def _with(instance: Instance, **changes: object) -> Instance:
    return replace(instance, **changes)  # type: ignore[arg-type]


def test_instance__finds_leaves_and_capacities() -> None:
    instance = figure_1([])
    assert instance.leaf_of["W4"] == "L3"
    assert instance.capacity["L1", "S0"] == instance.capacity["S0", "L1"] == 1.0
    assert instance.fastest_gbps == 1.0


@pytest.mark.parametrize(
    ("link", "message"),
    [
        (Link("L1", "nowhere", 1.0), "'nowhere' is neither"),
        (Link("L1", "L2", 1.0), "joins tiers 0 and 0"),
        (Link("S0", "L1", 1.0), "listed twice"),
    ],
)
def test_instance__rejects_links_that_are_no_clos(link: Link, message: str) -> None:
    instance = figure_1([])
    with pytest.raises(InstanceError, match=message):
        _with(instance, links=(*instance.links, link))


def test_instance__rejects_a_link_without_capacity() -> None:
    instance = figure_1([])
    with pytest.raises(InstanceError, match="must be positive"):
        _with(instance, links=(replace(instance.links[0], gbps=0.0), *instance.links[1:]))


def test_instance__rejects_a_host_with_two_links() -> None:
    instance = figure_1([])
    with pytest.raises(InstanceError, match="'W0' has 2 links"):
        _with(instance, links=(*instance.links, Link("W0", "L3", 1.0)))
