from __future__ import annotations

from dataclasses import replace

import pytest
from routing_cases import figure_1

from mlt.planners.aro.instance import Instance
from mlt.planners.aro.multiple import plan_routes
from mlt.planners.aro.routes import TaskPlan, WorkerRoute
from mlt.planners.aro.verify import verify
from studies.aro.generate import Hardware, Workload, fat_tree


def _good(instance: Instance) -> TaskPlan:
    return plan_routes(instance).plans[0]


def _reroute(plan: TaskPlan, worker: str, path: tuple[str, ...]) -> TaskPlan:
    return replace(plan, routes={**plan.routes, worker: WorkerRoute(path)})


INSTANCE = figure_1(["L1", "L2", "S1"])


def test_verify__accepts_a_good_plan_and_counts_merged_flows() -> None:
    report = verify(INSTANCE, [_good(INSTANCE)])
    assert report.ok
    assert report.flows["L1", "S1"] == {"job/task": 1}
    assert report.flows["L0", "ps"] == {"job/task": 1}


@pytest.mark.parametrize(
    ("worker", "path", "message"),
    [
        ("W4", ("W4", "L3", "S0", "L0"), "does not lead from W4 to ps"),
        ("W4", ("W4", "L3", "L0", "ps"), "unknown link L3-L0"),
        ("W4", ("W4", "L3", "S0", "L1", "S1", "L0", "ps"), "is not up-down"),
        ("W1", ("W1", "L1", "S0", "L0", "ps"), "L1#0"),
    ],
)
def test_verify__finds_a_bad_path(worker: str, path: tuple[str, ...], message: str) -> None:
    faults = verify(INSTANCE, [_reroute(_good(INSTANCE), worker, path)]).faults
    assert any(message in fault for fault in faults), faults


def test_verify__finds_an_overloaded_link() -> None:
    plan = _reroute(_good(INSTANCE), "W4", ("W4", "L3", "S0", "L0", "ps"))
    faults = verify(INSTANCE, [plan]).faults
    assert any("link L0->ps: 2 Gbit/s on 1 Gbit/s" in fault for fault in faults), faults


def test_verify__adds_up_the_loads_of_all_tasks() -> None:
    good = _good(INSTANCE)
    two = replace(INSTANCE, jobs=(INSTANCE.jobs[0], replace(INSTANCE.jobs[0], name="other")))
    faults = verify(two, [good, replace(good, job="other")]).faults
    assert any("link W0->L1: 2 Gbit/s" in fault for fault in faults), faults


def test_verify__wants_every_worker_and_task() -> None:
    good = _good(INSTANCE)
    routes = dict(good.routes)
    del routes["W3"]
    assert any("disagree about W3" in fault for fault in verify(INSTANCE, [replace(good, routes=routes)]).faults)
    assert verify(INSTANCE, []).faults == ("job/task: no routes",)
    assert any("not a task" in fault for fault in verify(INSTANCE, [good, replace(good, job="ghost")]).faults)
    assert any("rate -1.0" in fault for fault in verify(INSTANCE, [replace(good, rate=-1.0)]).faults)


def test_verify__rejects_a_detour_through_the_core() -> None:
    instance = fat_tree(k=4, hardware=Hardware(share=0.0), workload=Workload(workers=15))
    plan = _good(instance)
    worker = next(w for w in plan.routes if instance.leaf_of[w] == "edge0_1")
    assert len(plan.routes[worker].path) == 5
    detour = (worker, "edge0_1", "agg0_0", "core0_0", "agg0_0", "edge0_0", "host0")
    faults = verify(instance, [_reroute(plan, worker, detour)]).faults
    assert any("shortest up-down path has 5" in fault for fault in faults), faults
