from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from routing_cases import QUICK, figure_1, instances

from mlt.planners.aro.instance import Instance, InstanceError
from mlt.planners.aro.multiple import plan_routes
from mlt.planners.aro.verify import verify
from studies.aro.baselines import fair_rates, plan_aggtree, plan_random
from studies.aro.generate import Hardware, Workload, fat_tree, leaf_spine
from studies.aro.grid import plan_grid


def _with_programmable_spine(seed: int) -> Instance:
    while True:
        instance = leaf_spine(seed=seed)
        if any(switch.programmable and switch.tier == 1 for switch in instance.switches):
            return instance
        seed += 1000


@pytest.mark.parametrize("seed", range(5))
def test_plan_random__is_bound_by_the_fullest_common_leaf(seed: int) -> None:
    """The paper: with one programmable spine, the workers under one common leaf set the rate (figure 8b)."""
    instance = _with_programmable_spine(seed)
    (plan,) = plan_random(instance, seed=seed)
    spines = {route.path[2] for route in plan.routes.values() if len(route.path) == 5}
    assert len(spines) == 1
    assert instance.switch[spines.pop()].programmable
    leaves = Counter(instance.leaf_of[worker] for worker in instance.jobs[0].workers)
    fullest = max(n for leaf, n in leaves.items() if not instance.switch[leaf].programmable)
    assert plan.rate == pytest.approx(100 / fullest)


def test_plan_aggtree__spreads_each_leaf_over_distinct_spines() -> None:
    instance = leaf_spine(seed=3)
    (plan,) = plan_aggtree(instance, seed=3)
    for switch in instance.switches:
        if switch.tier == 0 and not switch.programmable:
            spines = [r.path[2] for r in plan.routes.values() if r.path[1] == switch.name]
            assert len(set(spines)) == len(spines)


@settings(max_examples=25, deadline=None)
@given(instances(jobs=2), st.integers(0, 100))
def test_baselines__are_valid_reproducible_and_never_beat_the_bound(instance: Instance, seed: int) -> None:
    solution = plan_routes(instance, effort=QUICK)
    for plan in (plan_random, plan_aggtree):
        plans = plan(instance, seed=seed)
        report = verify(instance, plans)
        assert report.ok, report.faults
        assert plans == plan(instance, seed=seed)
        assert min(p.rate for p in plans) <= solution.bound * (1 + 1e-9)


@pytest.mark.parametrize("enforce", [False, True])
@pytest.mark.parametrize("reading", ["rate", "line-rate"])
def test_plan_grid__merges_each_flow_at_most_once(reading: str, enforce: bool) -> None:
    instance = leaf_spine(seed=6)
    (plan,) = plan_grid(instance, seed=6, reading=reading, enforce=enforce)  # type: ignore[arg-type]
    assert verify(instance, [plan]).ok
    assert all(route.aggregators is not None and len(route.aggregators) <= 1 for route in plan.routes.values())
    assert plan.rate <= plan_routes(instance, effort=QUICK).plans[0].rate


def test_plan_grid__flat_pipelines_are_faster() -> None:
    four = [plan_grid(leaf_spine(seed=s), seed=s)[0].rate for s in range(5)]
    flat = [plan_grid(leaf_spine(seed=s, hardware=Hardware(pipelines=1)), seed=s)[0].rate for s in range(5)]
    assert sum(flat) > sum(four)


def test_plan_grid__enforced_switches_merge_no_more_than_they_hold() -> None:
    instance = leaf_spine(seed=4)
    (free,) = plan_grid(instance, seed=4, reading="line-rate")
    (held,) = plan_grid(instance, seed=4, reading="line-rate", enforce=True)
    merged = [Counter(a for route in plan.routes.values() for a in route.aggregators or ()) for plan in (free, held)]
    assert max(merged[0].values()) > 32 >= max(merged[1].values())
    assert held.rate < free.rate


def test_plan_grid__rejects_a_third_tier() -> None:
    with pytest.raises(InstanceError, match="tiers"):
        plan_grid(fat_tree(k=4, workload=Workload(workers=4)), seed=0)


def test_fair_rates__share_a_link_and_let_the_other_task_rise() -> None:
    hardware = Hardware(share=1.0, pipelines=1)
    instance = leaf_spine(seed=1, hardware=hardware, workload=Workload(tasks=2, workers=40))
    plans = fair_rates(instance, plan_random(instance, seed=0))
    assert [plan.rate for plan in plans] == pytest.approx([50.0, 50.0])


def test_plan_random__works_without_any_programmable_switch() -> None:
    (plan,) = plan_random(figure_1([]), seed=0)
    assert plan.rate == pytest.approx(0.2)
