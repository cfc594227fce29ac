"""Routes in forms that networks accept: SRv6 segment lists and static ECMP overrides.

Absent on purpose: OpenFlow rules. OpenFlow has no action for merging; the aggregator merges.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv6Address

from mlt.planners.aro.instance import Instance
from mlt.planners.aro.routes import TaskPlan, WorkerRoute
from mlt.planners.plan import EcmpOverride

_LOCATOR = int(IPv6Address("fc00::"))


def segment_ids(switches: Iterable[str], given: Mapping[str, str | None] | None = None) -> dict[str, str]:
    """SRv6 SID of every switch: from ``given``, else numbered from fc00:0:1::."""
    stated = given or {}
    return {name: stated.get(name) or str(IPv6Address(_LOCATOR + (i + 1 << 80))) for i, name in enumerate(switches)}


@dataclass(frozen=True)
class Hop:
    """A flow at one switch: identity on arrival and on departure (they differ where it merges)."""

    switch: str
    next_hop: str
    before: tuple[str, int]
    after: tuple[str, int]

    @property
    def merges(self) -> bool:
        return self.before != self.after


def merging_places(instance: Instance, route: WorkerRoute) -> tuple[tuple[str, int], ...]:
    """(switch, pipeline) of every place where this flow may merge with others."""
    return tuple(hop.after for hop in hops(instance, route) if hop.merges)


def hops(instance: Instance, route: WorkerRoute) -> list[Hop]:
    """The switches along ``route`` in order. An identity is (node, pipeline), -1 for a worker's own flow."""
    identity = (route.path[0], -1)
    found = []
    for before, here, after in zip(route.path, route.path[1:-1], route.path[2:], strict=False):
        switch = instance.switch[here]
        merged = switch.programmable and (route.aggregators is None or here in route.aggregators)
        leaving = (here, switch.pipeline_of[before]) if merged else identity
        found.append(Hop(here, after, identity, leaving))
        identity = leaving
    return found


def next_choices(instance: Instance, here: str, ps: str) -> int:
    """Number of next hops of ``here`` on shortest up-down paths to ``ps``: the upper ones, unless ``ps`` is below."""
    tier = instance.tier(here)
    below = _above(instance, ps)
    if here in below:
        return sum(port.peer in below and instance.tier(port.peer) < tier for port in instance.switch[here].ports)
    return sum(instance.tier(port.peer) > tier for port in instance.switch[here].ports)


def _above(instance: Instance, host: str) -> frozenset[str]:
    """The host and every switch that reaches it by going only down."""
    cache: dict[str, frozenset[str]] = instance.__dict__.setdefault("_above_cache", {})
    if host not in cache:
        found, front = {host, instance.leaf_of[host]}, {instance.leaf_of[host]}
        while front:
            front = {
                port.peer
                for name in front
                for port in instance.switch[name].ports
                if instance.tier(port.peer) > instance.tier(name)
            }
            found |= front
        cache[host] = frozenset(found)
    return cache[host]


def segment_list(instance: Instance, route: WorkerRoute, sids: Mapping[str, str]) -> tuple[str, ...]:
    """SIDs in order of travel: each switch that merges the flow or that shortest paths leave open."""
    ps = route.path[-1]
    merging = {hop.switch for hop in hops(instance, route) if hop.merges}
    found = []
    for place in range(1, len(route.path) - 1):
        here, previous = route.path[place], route.path[place - 1]
        chosen = place > 1 and next_choices(instance, previous, ps) > 1
        if here in merging or chosen:
            found.append(sids[here])
    return tuple(found)


def ecmp_overrides(instance: Instance, plans: Sequence[TaskPlan]) -> list[EcmpOverride]:
    """A fixed next hop wherever shortest paths are ambiguous, one per flow and server.

    The source of a merged flow is ``switch:pipeline``.
    """
    found: dict[EcmpOverride, None] = {}
    for plan in plans:
        for route in plan.routes.values():
            for hop in hops(instance, route):
                if next_choices(instance, hop.switch, plan.ps) < 2:
                    continue
                name, pipeline = hop.after
                source = name if pipeline < 0 else f"{name}:{pipeline}"
                port = instance.switch[hop.switch].port_number[hop.next_hop]
                override = EcmpOverride(
                    switch=hop.switch, source=source, destination=plan.ps, next_hop=hop.next_hop, port=port
                )
                found[override] = None
    return list(found)


def srv6_lines(instance: Instance, plans: Sequence[TaskPlan], sids: Mapping[str, str]) -> list[str]:
    """One line per worker and task, ``worker: server via segments``, in order of travel."""
    return [
        f"{worker}: {plan.ps} via {' '.join(segment_list(instance, route, sids)) or 'the leaf'}"
        for plan in plans
        for worker, route in plan.routes.items()
    ]
