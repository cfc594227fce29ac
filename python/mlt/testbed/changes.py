"""Topologies with one setting changed, on one link or on all: what a change of a testbed that is up asks for.

Values are as in a topology file: "200mbit" or bits per second, "1%" or a fraction, "5ms" or seconds.
"""

from __future__ import annotations

from mlt.testbed.errors import BadTopologyError
from mlt.testbed.layout import DIRECTIONS
from mlt.testbed.topology import Topology

_LOSS = ("loss", "loss_up", "loss_down")


def with_loss(
    topology: Topology, loss: str | float, *, link: str | None = None, direction: str | None = None
) -> Topology:
    """The fraction of packets dropped on one link (default: both directions), or on every host's uplink.

    >>> with_loss(make({"hosts": 2, "rate": "1mbit"}), "1%", link="host0", direction="up").settings("host0").loss_up
    0.01
    """
    which = _directions(direction)
    if link is not None:
        return topology.with_link(link, **{f"loss_{one}": loss for one in which})
    hosts = topology.host_names()
    links = {
        name: settings.model_copy(update=dict.fromkeys(_LOSS)) if name in hosts else settings
        for name, settings in topology.links.items()
    }
    return topology.changed(loss=loss, links={name: one.model_dump(exclude_none=True) for name, one in links.items()})


def with_delay(
    topology: Topology,
    delay: str | float | None = None,
    *,
    jitter: str | float | None = None,
    link: str | None = None,
    direction: str | None = None,
) -> Topology:
    """Delay, jitter or both of one link (default: both directions), or of every host's link upwards.

    >>> with_delay(make({"hosts": 2, "rate": "1mbit", "delay": 0}), "5ms").settings("host1").delay_up
    0.005
    """
    which = _directions(direction)
    given = {name: value for name, value in (("delay", delay), ("jitter", jitter)) if value is not None}
    if link is not None:
        return topology.with_link(
            link, **{f"{field}_{one}": value for field, value in given.items() for one in which}
        )  # fmt: skip
    changed = topology.changed(**given)
    for name in topology.host_names():
        if name in changed.links:
            changed = changed.with_link(name, **{f"{field}_up": value for field, value in given.items()})
    return changed


def with_rate(topology: Topology, rate: str | int, *, link: str | None = None) -> Topology:
    """The rate of one link, or of all, also of those that had their own.

    >>> with_rate(make({"hosts": 2, "rate": "1mbit"}), "2mbit").settings("host0").rate
    2000000
    """
    if link is not None:
        return topology.with_link(link, rate=rate)
    cleared = {
        name: one.model_copy(update={"rate": None}).model_dump(exclude_none=True)
        for name, one in topology.links.items()
    }
    uplink = topology.uplink.model_copy(update={"rate": None}).model_dump(exclude_none=True)
    return topology.changed(rate=rate, links=cleared, uplink=uplink)


def with_buffer(topology: Topology, buffer: str | int, *, link: str | None = None) -> Topology:
    """The buffer of the switch ports on one link, or on all.

    >>> with_buffer(make({"hosts": 2, "rate": "1mbit"}), "64KiB").settings("host0").buffer
    65536
    """
    return topology.changed(buffer=buffer) if link is None else topology.with_link(link, buffer=buffer)


def _directions(direction: str | None) -> tuple[str, ...]:
    if direction is None:
        return tuple(DIRECTIONS)
    if direction not in DIRECTIONS:
        raise BadTopologyError(f"direction {direction!r}: up or down")
    return (direction,)
