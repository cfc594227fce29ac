"""Boxes of rates: bounds that no plan exceeds, and routes that the verifier accepts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from routing_cases import QUICK, instances

from mlt.planners.aro.bounds import Objective, bound_rates
from mlt.planners.aro.boxes import TOLERANCE, Search
from mlt.planners.aro.graph import TaskGraph, unfold
from mlt.planners.aro.highs import Verdict
from mlt.planners.aro.instance import Instance
from mlt.planners.aro.joint import route_jointly
from mlt.planners.aro.multiple import plan_routes
from mlt.planners.aro.routes import TaskPlan, generate_routes
from mlt.planners.aro.single import solve_task
from mlt.planners.aro.verify import verify
from studies.aro.generate import Hardware, Workload, leaf_spine


def prepared(instance: Instance) -> tuple[list[TaskGraph], list[float], float]:
    """Graphs, what each task can have alone, and the bound that follows from links alone."""
    graphs = [unfold(instance, job, task) for job, task in instance.tasks]
    alone = [solve_task(graph).bound for graph in graphs]
    return graphs, alone, bound_rates(instance, graphs, alone, Objective()).value


def test_search__proves_what_links_alone_leave_open() -> None:
    instance = leaf_spine(seed=1, workload=Workload(jobs=2, tasks=2, workers=100))
    graphs, alone, bound = prepared(instance)
    known = 50.0 + 0.001 * 108.0
    assert bound / known > 1.16  # what the rates' own links allow
    search = Search(instance, graphs, Objective(), seconds=60.0)
    proven = search.run(alone, value=known, bound=bound, seconds=60.0)
    assert proven <= known * (1 + 2 * TOLERANCE)


def test_search__finds_routes_that_one_task_after_another_misses() -> None:
    instance = leaf_spine(seed=0, workload=Workload(jobs=3, tasks=2, workers=100))
    graphs, alone, bound = prepared(instance)
    search = Search(instance, graphs, Objective(), seconds=60.0)
    search.run(alone, value=50.2, bound=bound, seconds=60.0)
    assert search.best is not None
    assert search.value > 53.0
    plans = [
        TaskPlan(job.name, task.name, task.ps, float(rate), generate_routes(graph, y))
        for (job, task), graph, rate, y in zip(
            instance.tasks, graphs, search.best.rates, search.best.flows, strict=True
        )
    ]
    report = verify(instance, plans)
    assert report.ok, report.faults
    assert Objective().value(instance, search.best.rates.tolist()) == pytest.approx(search.value)


@settings(max_examples=25, deadline=None)
@given(st.data(), st.integers(1, 3), st.integers(1, 2), st.floats(0.5, 0.999))
def test_search__bound_is_never_below_a_plan_that_exists(
    data: st.DataObject, jobs: int, tasks: int, part: float
) -> None:
    instance = data.draw(instances(jobs=jobs, tasks=tasks))
    solution = plan_routes(instance, effort=replace(QUICK, seconds=1.0))
    assert verify(instance, solution.plans).ok
    graphs, alone, bound = prepared(instance)
    search = Search(instance, graphs, Objective(), seconds=1.0)
    proven = search.run(alone, value=part * solution.value, bound=bound, seconds=1.0)
    assert proven >= solution.value * (1 - 1e-6)
    assert search.value <= proven * (1 + 1e-9)


@settings(max_examples=15, deadline=None)
@given(instances(jobs=2, tasks=1))
def test_search__closed_corners_have_no_routes(instance: Instance) -> None:
    graphs, alone, bound = prepared(instance)
    search = Search(instance, graphs, Objective(), seconds=1.0)
    search.run(alone, value=0.5 * bound, bound=bound, seconds=1.0)
    for corner in search.closed[:3]:
        verdict, _ = route_jointly(graphs, corner, seconds=10.0)
        assert verdict is not Verdict.FEASIBLE


def test_may_route__is_false_above_a_closed_corner() -> None:
    instance = leaf_spine(seed=1, hardware=Hardware(), workload=Workload(jobs=2, tasks=2, workers=100))
    graphs, alone, _ = prepared(instance)
    search = Search(instance, graphs, Objective(), seconds=30.0)
    assert not search.may_route(np.array(alone))
    assert len(search.closed) == 1
    assert not search.may_route(np.array(alone) * 1.01)
    assert len(search.closed) == 1
