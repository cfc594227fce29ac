from __future__ import annotations

from hypothesis import given, settings
from routing_cases import QUICK, figure_1, instances

from mlt.planners.aro.export import (
    MERGED_PORT,
    TASK_PORT,
    Addresses,
    Rule,
    ecmp_overrides,
    merging_places,
    openflow_rules,
    rule_lines,
    segment_list,
    srv6_lines,
)
from mlt.planners.aro.instance import Instance
from mlt.planners.aro.solve import plan_routes


def _forward(instance: Instance, rules: list[Rule], fields: dict[str, str | int], worker: str) -> tuple[str, ...]:
    """Carry a packet through the flow tables as a switch would; an aggregate action re-addresses it and looks again."""
    addresses = Addresses.of_instance(instance)
    path = [worker, instance.leaf_of[worker]]
    while path[-1] in instance.switch:
        switch = instance.switch[path[-1]]
        fields["in_port"] = switch.port_number[path[-2]]
        merged = False
        while True:
            found = [r for r in rules if r.switch == switch.name and all(fields.get(k) == v for k, v in r.match)]
            best = [r for r in found if r.priority == max(r.priority for r in found)]
            assert len(best) == 1, (switch.name, fields, found)
            verb, argument = best[0].actions[0].split(":")
            if verb == "output":
                path.append(next(port.peer for port in switch.ports if port.number == int(argument)))
                break
            assert not merged
            merged = True
            fields |= {"ipv4_src": addresses.ip[switch.name], "udp_src": MERGED_PORT + int(argument)}
            fields["in_port"] = -1
    return tuple(path)


@settings(max_examples=30, deadline=None)
@given(instances(jobs=2))
def test_openflow_rules__forward_every_flow_along_its_route(instance: Instance) -> None:
    plans = plan_routes(instance, effort=QUICK).plans
    addresses = Addresses.of_instance(instance)
    rules = openflow_rules(instance, plans, addresses)
    for number, plan in enumerate(plans):
        for worker, route in plan.routes.items():
            fields: dict[str, str | int] = {
                "eth_type": "0x0800",
                "ip_proto": 17,
                "ipv4_src": addresses.ip[worker],
                "ipv4_dst": addresses.ip[plan.ps],
                "udp_src": 1,
                "udp_dst": TASK_PORT + number,
            }
            assert _forward(instance, rules, fields, worker) == route.path


def _shortest(instance: Instance, start: str, end: str) -> list[tuple[str, ...]]:
    """Every shortest path between two nodes, by plain breadth-first search."""
    front: list[tuple[str, ...]] = [(start,)]
    seen = {start}
    while front:
        if any(path[-1] == end for path in front):
            return [path for path in front if path[-1] == end]
        front = [(*path, b) for path in front for (a, b) in instance.capacity if a == path[-1] and b not in seen]
        seen |= {path[-1] for path in front}
    return []


@settings(max_examples=20, deadline=None)
@given(instances())
def test_segment_list__pins_the_path_by_shortest_paths_between_segments(instance: Instance) -> None:
    (plan,) = plan_routes(instance, effort=QUICK).plans
    addresses = Addresses.of_instance(instance)
    name_of = {sid: name for name, sid in addresses.sid.items()}
    for worker, route in list(plan.routes.items())[:4]:
        stops = [name_of[sid] for sid in segment_list(instance, route, addresses)]
        walked: tuple[str, ...] = (worker,)
        for stop in [*stops, plan.ps]:
            options = _shortest(instance, walked[-1], stop)
            assert len(options) == 1, (walked, stop, options)
            walked += options[0][1:]
        assert walked == route.path


@settings(max_examples=20, deadline=None)
@given(instances(jobs=2))
def test_ecmp_overrides__agree_with_the_routes(instance: Instance) -> None:
    plans = plan_routes(instance, effort=QUICK).plans
    overrides = ecmp_overrides(instance, plans)
    keys = [(o.switch, o.source, o.destination) for o in overrides]
    assert len(set(keys)) == len(keys)
    hops = {
        (a, b, plan.ps)
        for plan in plans
        for route in plan.routes.values()
        for a, b in zip(route.path, route.path[1:], strict=False)
    }
    assert all((o.switch, o.next_hop, o.destination) in hops for o in overrides)
    assert all(instance.switch[o.switch].port_number[o.next_hop] == o.port for o in overrides)


def test_merging_places__of_figure_1() -> None:
    instance = figure_1(["L1", "L2", "S1"])
    (plan,) = plan_routes(instance, effort=QUICK).plans
    assert merging_places(instance, plan.routes["W0"]) == (("L1", 0), ("S1", 0))
    assert merging_places(instance, plan.routes["W4"]) == (("S1", 0),)


def test_lines__are_readable() -> None:
    instance = figure_1(["L1", "L2", "S1"])
    plans = plan_routes(instance, effort=QUICK).plans
    addresses = Addresses.of_instance(instance)
    assert "W4: ps via fc00:0:6::" in srv6_lines(instance, plans, addresses)
    expected = (
        "S1: priority=200,in_port=3,eth_type=0x0800,ip_proto=17,ipv4_dst=10.0.0.1,udp_dst=40000 actions=aggregate:0"
    )
    assert expected in rule_lines(openflow_rules(instance, plans, addresses))
