from __future__ import annotations

from dataclasses import replace

import pytest
from checks import names
from routing_cases import figure_1

from mlt.planners.aro.instance import Instance, InstanceError, Job, Link, Port, Task


def _with(instance: Instance, **changes: object) -> Instance:
    return replace(instance, **changes)  # type: ignore[arg-type]


def test_instance__finds_leaves_and_capacities() -> None:
    instance = figure_1([])
    assert instance.leaf_of["W4"] == "L3"
    assert instance.capacity["L1", "S0"] == instance.capacity["S0", "L1"] == 1.0
    assert instance.fastest_gbps == 1.0


def test_instance__rejects_two_nodes_of_one_name() -> None:
    with pytest.raises(InstanceError, match="'L0' names two nodes"):
        _with(figure_1([]), hosts=("L0", *figure_1([]).hosts))


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


def test_instance__rejects_ports_that_disagree_with_links() -> None:
    instance = figure_1([])
    broken = replace(instance.switches[0], ports=instance.switches[0].ports[1:])
    with pytest.raises(InstanceError, match=names("'L0'", "links", " ps")):
        _with(instance, switches=(broken, *instance.switches[1:]))


def test_instance__rejects_a_pipeline_out_of_range() -> None:
    instance = figure_1([])
    first = instance.switches[0]
    broken = replace(first, ports=(Port("ps", 0, 4), *first.ports[1:]))
    with pytest.raises(InstanceError, match=names("pipeline 4", "0 to 0")):
        _with(instance, switches=(broken, *instance.switches[1:]))


@pytest.mark.parametrize(
    ("job", "message"),
    [
        (Job("j", (), (Task("t", "ps"),)), "at least one worker"),
        (Job("j", ("W0", "W0"), (Task("t", "ps"),)), "listed twice"),
        (Job("j", ("W0",), (Task("t", "W0"),)), "also one of the workers"),
        (Job("j", ("L0",), (Task("t", "ps"),)), "'L0' is not a host"),
        (Job("j", ("W0",), (Task("t", "ps"), Task("t", "ps"))), "two jobs"),
        (Job("j", ("W0",), (Task("t", "ps"),), weight=0.0), "must be positive"),
    ],
)
def test_instance__rejects_contradictory_jobs(job: Job, message: str) -> None:
    with pytest.raises(InstanceError, match=message):
        _with(figure_1([]), jobs=(job,))
