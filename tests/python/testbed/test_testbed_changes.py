"""Topologies with one setting changed, of one link or of all; none needs a testbed that is up."""

from __future__ import annotations

import doctest
from typing import Any

import pytest
from checks import names

from mlt.testbed import changes
from mlt.testbed.errors import BadTopologyError
from mlt.testbed.topology import Topology, make


def topology(**fields: Any) -> Topology:
    return make({"hosts": 2, "rate": "100mbit", "delay": 0, **fields})


def test_examples() -> None:
    assert doctest.testmod(changes, extraglobs={"make": make}) == (0, 4)


def test_with_loss__of_all_is_upwards_replaces_what_single_hosts_had_and_keeps_their_rest() -> None:
    before = topology(links={"host0": {"loss": "5%", "rate": "10mbit"}})
    after = changes.with_loss(before, "1%")
    for host in ("host0", "host1"):
        assert (after.settings(host).loss_up, after.settings(host).loss_down) == (0.01, 0.0)
    assert after.settings("host0").rate == 10_000_000
    assert before.settings("host0").loss_up == 0.05


def test_with_loss__of_all_leaves_links_between_switches() -> None:
    before = make({"hosts": 2, "rate": "1mbit", "leaves": 2, "spines": 1, "links": {"leaf0-spine0": {"loss": "5%"}}})
    after = changes.with_loss(before, "1%")
    assert after.settings("leaf0-spine0").loss_up == 0.05
    assert after.settings("host1").loss_up == 0.01


def test_with_loss__of_one_direction() -> None:
    after = changes.with_loss(topology(loss="2%"), "3%", link="host1", direction="down")
    assert (after.settings("host1").loss_up, after.settings("host1").loss_down) == (0.02, 0.03)
    assert after.settings("host0").loss_down == 0


def test_with_delay__of_all_is_upwards_and_keeps_what_is_not_given() -> None:
    before = topology(delay="1ms", jitter="1us", links={"host0": {"delay": "3ms"}})
    after = changes.with_delay(before, "5ms")
    for host in ("host0", "host1"):
        assert after.settings(host).delay_up == 0.005
        assert after.settings(host).jitter_up == before.settings(host).jitter_up
    assert changes.with_delay(before, jitter="2us").settings("host0").delay_up == 0.003


def test_with_delay__of_one_link_is_in_both_directions() -> None:
    after = changes.with_delay(topology(), "5ms", link="host1")
    assert (after.settings("host1").delay_up, after.settings("host1").delay_down) == (0.005, 0.005)
    assert after.settings("host0").delay_up == 0


def test_with_rate__of_all_replaces_what_single_links_had() -> None:
    before = topology(links={"host0": {"rate": "1mbit", "loss": "5%"}})
    after = changes.with_rate(before, "2mbit")
    assert [after.settings(host).rate for host in ("host0", "host1")] == [2_000_000, 2_000_000]
    assert after.settings("host0").loss_up == 0.05
    assert changes.with_rate(before, "2mbit", link="host1").settings("host0").rate == 1_000_000


def test_with_buffer__of_one_link_and_of_all() -> None:
    assert changes.with_buffer(topology(), "64KiB").settings("host1").buffer == 65_536
    after = changes.with_buffer(topology(), "64KiB", link="host0")
    assert after.settings("host0").buffer == 65_536
    assert after.settings("host1").buffer != 65_536


@pytest.mark.parametrize("change", [changes.with_loss, changes.with_delay])
def test_changes__reject_unknown_links_and_directions(change: Any) -> None:
    with pytest.raises(BadTopologyError, match="sideways"):
        change(topology(), 0, direction="sideways")
    with pytest.raises(BadTopologyError, match=names("host7")):
        change(topology(), 0, link="host7")
