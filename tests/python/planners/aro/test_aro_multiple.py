from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from routing_cases import QUICK, instances

from mlt.planners.aro.bounds import Objective, bound_rates, job_totals, rate_rows
from mlt.planners.aro.graph import unfold
from mlt.planners.aro.instance import Instance
from mlt.planners.aro.multiple import plan_routes
from mlt.planners.aro.single import NoRoutesError, solve_task
from mlt.planners.aro.verify import verify
from studies.aro.accelerate import Accelerations, plan_accelerated
from studies.aro.generate import Hardware, Workload, leaf_spine


@pytest.mark.parametrize("seed", range(5))
def test_solve_tasks__two_jobs_of_100_workers_are_proven_optimal(seed: int) -> None:
    instance = leaf_spine(seed=seed, workload=Workload(jobs=2, workers=100))
    solution = plan_routes(instance)
    assert solution.proven
    assert verify(instance, solution.plans).ok


def test_solve_tasks__240_switches_5_jobs_500_workers_each_within_a_percent_in_a_minute() -> None:
    instance = leaf_spine(leaves=120, spines=120, workload=Workload(jobs=5, workers=500), seed=0)
    solution = plan_routes(instance)
    assert solution.gap <= 0.01
    assert solution.seconds < 60.0
    assert verify(instance, solution.plans).ok


def test_solve_tasks__one_job_never_exceeds_its_workers_links() -> None:
    instance = leaf_spine(seed=2, workload=Workload(tasks=4, workers=60))
    solution = plan_routes(instance)
    assert sum(plan.rate for plan in solution.plans) <= 100.0 * (1 + 1e-9)
    assert solution.proven


@settings(max_examples=30, deadline=None)
@given(st.data(), st.integers(1, 3), st.integers(1, 2))
def test_solve_tasks__routes_pass_the_verifier_and_respect_the_bound(
    data: st.DataObject, jobs: int, tasks: int
) -> None:
    instance = data.draw(instances(jobs=jobs, tasks=tasks))
    solution = plan_routes(instance, effort=QUICK)
    report = verify(instance, solution.plans)
    assert report.ok, report.faults
    assert solution.value <= solution.bound * (1 + 1e-9)
    assert solution.value == pytest.approx(Objective().value(instance, [plan.rate for plan in solution.plans]))


@settings(max_examples=15, deadline=None)
@given(instances(jobs=2, tasks=2))
def test_solve_tasks__same_seed_same_plan(instance: Instance) -> None:
    first, second = plan_routes(instance, effort=QUICK), plan_routes(instance, effort=QUICK)
    if first.found_by == second.found_by and first.seconds + second.seconds < 2.0:  # no time limit interfered
        assert [plan.routes for plan in first.plans] == [plan.routes for plan in second.plans]


@settings(max_examples=20, deadline=None)
@given(instances(jobs=2, tasks=1))
def test_solve_tasks__bound_never_falls_with_more_bandwidth(instance: Instance) -> None:
    wider = replace(instance, links=tuple(replace(link, gbps=link.gbps * 1.5) for link in instance.links))
    assert plan_routes(wider, effort=QUICK).bound >= plan_routes(instance, effort=QUICK).bound * (1 - 1e-9)


def test_solve_tasks__quantised_rates_are_whole_gigabits() -> None:
    instance = leaf_spine(seed=4, workload=Workload(jobs=2, tasks=2, workers=60))
    solution = plan_accelerated(instance, accelerations=Accelerations(qsr_levels=100))
    rates = np.array([plan.rate for plan in solution.plans])
    assert np.allclose(rates, np.round(rates))
    assert solution.value <= plan_routes(instance).bound * (1 + 1e-9)


def test_objective__is_equation_3() -> None:
    instance = leaf_spine(seed=0, workload=Workload(jobs=2, tasks=2, workers=10))
    heavy = replace(instance, jobs=(replace(instance.jobs[0], weight=2.0), instance.jobs[1]))
    assert job_totals(heavy, [1.0, 2.0, 3.0, 5.0]) == [3.0, 8.0]
    assert Objective(mu=0.01).value(heavy, [1.0, 2.0, 3.0, 5.0]) == pytest.approx(6.0 + 0.01 * 14.0)


def test_bound_rates__holds_for_every_row() -> None:
    instance = leaf_spine(seed=1, workload=Workload(jobs=3, tasks=2, workers=80), hardware=Hardware(share=0.5))
    graphs = [unfold(instance, job, task) for job, task in instance.tasks]
    alone = [solve_task(graph).rate for graph in graphs]
    bound = bound_rates(instance, graphs, alone, Objective())
    assert (bound.rates <= np.array(alone) * (1 + 1e-9)).all()
    for coefficients, limit in rate_rows(instance, graphs):
        assert sum(a * bound.rates[i] for i, a in coefficients.items()) <= limit * (1 + 1e-6)
    assert Objective().value(instance, list(bound.rates)) == pytest.approx(bound.value, rel=1e-6)


def test_solve_tasks__reports_rates_that_are_too_coarse() -> None:
    instance = leaf_spine(
        seed=0, leaves=2, spines=1, hosts_per_leaf=6, hardware=Hardware(share=0.0), workload=Workload(workers=8)
    )
    with pytest.raises(NoRoutesError, match="no routes fit"):
        plan_accelerated(instance, accelerations=Accelerations(qsr_levels=1))
