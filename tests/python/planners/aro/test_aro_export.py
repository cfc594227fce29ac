from __future__ import annotations

from hypothesis import given, settings
from routing_cases import QUICK, figure_1, instances

from mlt.planners.aro.export import ecmp_overrides, merging_places, segment_ids, segment_list, srv6_lines
from mlt.planners.aro.instance import Instance
from mlt.planners.aro.multiple import plan_routes


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
    sids = segment_ids(instance.switch)
    name_of = {sid: name for name, sid in sids.items()}
    for worker, route in list(plan.routes.items())[:4]:
        stops = [name_of[sid] for sid in segment_list(instance, route, sids)]
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
    assert "W4: ps via fc00:0:6::" in srv6_lines(instance, plans, segment_ids(instance.switch))
    stated = segment_ids(instance.switch, {"S1": "fd00::1", "L1": None})
    assert stated["S1"] == "fd00::1"
    assert stated["L1"] == segment_ids(instance.switch)["L1"]
