"""Routes in the forms that networks take them: SRv6 segment lists, OpenFlow rules, static ECMP overrides.

A flow leaves its worker under the worker's address. Where a pipeline merges a task's flows, the merged flow goes on
under the switch's address with UDP source port ``MERGED_PORT + pipeline``; the task is told by the UDP destination
port ``TASK_PORT + n``. What merging itself needs is the aggregator's business: the rule says ``aggregate:<pipeline>``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address

from mlt.planners.aro.instance import Instance
from mlt.planners.aro.routes import TaskPlan, WorkerRoute
from mlt.planners.cluster import Cluster

TASK_PORT = 40000
MERGED_PORT = 50000
_FIRST_HOST = int(IPv4Address("10.0.0.1"))
_FIRST_SWITCH = int(IPv4Address("10.240.0.1"))
_LOCATOR = int(IPv6Address("fc00::"))


@dataclass(frozen=True)
class Addresses:
    """IP address of every host and switch, SRv6 segment identifier of every switch."""

    ip: Mapping[str, str]
    sid: Mapping[str, str]

    @classmethod
    def of_cluster(cls, cluster: Cluster) -> Addresses:
        """The cluster file's addresses; what it leaves out is numbered from 10.0.0.1, 10.240.0.1 and fc00:0:1::."""
        given = {host.name: host.address for host in cluster.hosts}
        given |= {switch.name: switch.address for switch in cluster.switches}
        sids = {switch.name: switch.sid for switch in cluster.switches}
        return cls._fill(tuple(cluster.host_by_name), tuple(cluster.switch_by_name), given, sids)

    @classmethod
    def of_instance(cls, instance: Instance) -> Addresses:
        return cls._fill(instance.hosts, tuple(instance.switch), {}, {})

    @classmethod
    def _fill(
        cls,
        hosts: Sequence[str],
        switches: Sequence[str],
        given: Mapping[str, str | None],
        sids: Mapping[str, str | None],
    ) -> Addresses:
        ip = {name: given.get(name) or str(IPv4Address(_FIRST_HOST + i)) for i, name in enumerate(hosts)}
        ip |= {name: given.get(name) or str(IPv4Address(_FIRST_SWITCH + i)) for i, name in enumerate(switches)}
        sid = {name: sids.get(name) or str(IPv6Address(_LOCATOR + (i + 1 << 80))) for i, name in enumerate(switches)}
        return cls(ip, sid)


@dataclass(frozen=True)
class Rule:
    """One OpenFlow flow entry; the highest priority that matches wins."""

    switch: str
    priority: int
    match: tuple[tuple[str, str | int], ...]
    actions: tuple[str, ...]


@dataclass(frozen=True)
class Override:
    """A fixed next hop for one source and destination at one switch; a merged flow's source is ``switch:pipeline``."""

    switch: str
    source: str
    destination: str
    next_hop: str
    port: int


@dataclass(frozen=True)
class Hop:
    """A flow's passage of one switch: identity on arrival and on departure (they differ where it merges)."""

    switch: str
    arrived_from: str
    next_hop: str
    before: tuple[str, int]
    after: tuple[str, int]

    @property
    def merges(self) -> bool:
        return self.before != self.after


def merging_places(instance: Instance, route: WorkerRoute) -> tuple[tuple[str, int], ...]:
    """(switch, pipeline) of every place where this flow may become one with others."""
    return tuple(hop.after for hop in hops(instance, route) if hop.merges)


def hops(instance: Instance, route: WorkerRoute) -> list[Hop]:
    """The switches along ``route`` in order. An identity is (node, pipeline), -1 for a worker's own flow."""
    identity = (route.path[0], -1)
    found = []
    for before, here, after in zip(route.path, route.path[1:-1], route.path[2:], strict=False):
        switch = instance.switch[here]
        merged = switch.programmable and (route.aggregators is None or here in route.aggregators)
        leaving = (here, switch.pipeline_of[before]) if merged else identity
        found.append(Hop(here, before, after, identity, leaving))
        identity = leaving
    return found


def next_choices(instance: Instance, here: str, ps: str) -> int:
    """How many next hops shortest up-down paths to ``ps`` have at ``here``: the upper ones, unless ``ps`` is below."""
    tier = _tier(instance, here)
    below = _above(instance, ps)
    if here in below:
        return sum(port.peer in below and _tier(instance, port.peer) < tier for port in instance.switch[here].ports)
    return sum(_tier(instance, port.peer) > tier for port in instance.switch[here].ports)


def _tier(instance: Instance, name: str) -> int:
    switch = instance.switch.get(name)
    return -1 if switch is None else switch.tier


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
                if _tier(instance, port.peer) > _tier(instance, name)
            }
            found |= front
        cache[host] = frozenset(found)
    return cache[host]


def segment_list(instance: Instance, route: WorkerRoute, addresses: Addresses) -> tuple[str, ...]:
    """SRv6 segments in order of travel: each switch that merges the flow or that shortest paths leave open."""
    ps = route.path[-1]
    merging = {hop.switch for hop in hops(instance, route) if hop.merges}
    found = []
    for place in range(1, len(route.path) - 1):
        here, previous = route.path[place], route.path[place - 1]
        chosen = place > 1 and next_choices(instance, previous, ps) > 1
        if here in merging or chosen:
            found.append(addresses.sid[here])
    return tuple(found)


def openflow_rules(instance: Instance, plans: Sequence[TaskPlan], addresses: Addresses) -> list[Rule]:
    """Flow entries for every switch: one per task and input port where its flows all leave alike, else one per flow.

    Pipelines that merge get an ``aggregate`` entry per input port and an output entry for the merged flow.
    """
    number = {(job.name, task.name): place for place, (job, task) in enumerate(instance.tasks)}
    rules: dict[tuple[str, int, tuple[tuple[str, str | int], ...]], Rule] = {}
    for plan in plans:
        task: list[tuple[str, str | int]] = [
            ("eth_type", "0x0800" if _version(addresses.ip[plan.ps]) == "v4" else "0x86dd"),
            ("ip_proto", 17),
            (f"ip{_version(addresses.ip[plan.ps])}_dst", addresses.ip[plan.ps]),
            ("udp_dst", TASK_PORT + number[plan.job, plan.task]),
        ]
        arrivals: dict[tuple[str, str], dict[tuple[str, int], str]] = defaultdict(dict)
        for route in plan.routes.values():
            for hop in hops(instance, route):
                ports = instance.switch[hop.switch].port_number
                if hop.merges:
                    place: list[tuple[str, str | int]] = [("in_port", ports[hop.arrived_from])]
                    actions = (f"aggregate:{hop.after[1]}",)
                    if route.aggregators is not None:  # not every flow of the task merges here
                        place += _source(addresses, hop.before)
                    _add(rules, hop.switch, 300 if route.aggregators is not None else 200, place + task, actions)
                    merged = _source(addresses, hop.after)
                    _add(rules, hop.switch, 250, merged + task, (f"output:{ports[hop.next_hop]}",))
                else:
                    arrivals[hop.switch, hop.arrived_from][hop.before] = hop.next_hop
        for (switch, sender), leaving in arrivals.items():
            ports = instance.switch[switch].port_number
            entering: list[tuple[str, str | int]] = [("in_port", ports[sender])]
            if len(set(leaving.values())) == 1:
                port = ports[next(iter(leaving.values()))]
                _add(rules, switch, 100, entering + task, (f"output:{port}",))
                continue
            for identity, next_hop in leaving.items():
                match = entering + _source(addresses, identity) + task
                _add(rules, switch, 150, match, (f"output:{ports[next_hop]}",))
    return list(rules.values())


def _version(address: str) -> str:
    return f"v{ip_address(address).version}"


def _source(addresses: Addresses, identity: tuple[str, int]) -> list[tuple[str, str | int]]:
    name, pipeline = identity
    match: list[tuple[str, str | int]] = [(f"ip{_version(addresses.ip[name])}_src", addresses.ip[name])]
    return match if pipeline < 0 else [*match, ("udp_src", MERGED_PORT + pipeline)]


def _add(
    rules: dict[tuple[str, int, tuple[tuple[str, str | int], ...]], Rule],
    switch: str,
    priority: int,
    match: list[tuple[str, str | int]],
    actions: tuple[str, ...],
) -> None:
    key = (switch, priority, tuple(match))
    known = rules.setdefault(key, Rule(switch, priority, tuple(match), actions))
    if known.actions != actions:
        raise ValueError(f"switch {switch!r}: one flow would need two actions, {known.actions} and {actions}")


def ecmp_overrides(instance: Instance, plans: Sequence[TaskPlan]) -> list[Override]:
    """A fixed next hop wherever shortest paths leave a choice, one per flow and server."""
    found: dict[Override, None] = {}
    for plan in plans:
        for route in plan.routes.values():
            for hop in hops(instance, route):
                if next_choices(instance, hop.switch, plan.ps) < 2:
                    continue
                name, pipeline = hop.after
                source = name if pipeline < 0 else f"{name}:{pipeline}"
                port = instance.switch[hop.switch].port_number[hop.next_hop]
                found[Override(hop.switch, source, plan.ps, hop.next_hop, port)] = None
    return list(found)


def rule_lines(rules: Sequence[Rule]) -> list[str]:
    """One line per rule, ``switch: priority=..,field=value,.. actions=..``, fields named as in OpenFlow 1.3."""
    lines = []
    for rule in rules:
        match = ",".join(f"{field}={value}" for field, value in rule.match)
        lines.append(f"{rule.switch}: priority={rule.priority},{match} actions={','.join(rule.actions)}")
    return lines


def srv6_lines(instance: Instance, plans: Sequence[TaskPlan], addresses: Addresses) -> list[str]:
    """One line per worker and task, ``worker: server via segments``, in order of travel."""
    return [
        f"{worker}: {plan.ps} via {' '.join(segment_list(instance, route, addresses)) or 'the leaf'}"
        for plan in plans
        for worker, route in plan.routes.items()
    ]
