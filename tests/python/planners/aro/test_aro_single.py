from __future__ import annotations

from dataclasses import replace
from itertools import product
from statistics import median

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from routing_cases import figure_1, instances

from mlt.planners.aro.graph import unfold
from mlt.planners.aro.instance import Instance, Switch
from mlt.planners.aro.routes import TaskPlan, WorkerRoute, generate_routes
from mlt.planners.aro.single import TaskSolution, solve_task
from mlt.planners.aro.verify import verify
from studies.aro.generate import Hardware, Workload, leaf_spine
from studies.aro.whole import rate_of


def _solve(instance: Instance) -> TaskSolution:
    return solve_task(unfold(instance, *instance.tasks[0]))


def _plan(instance: Instance, solution: TaskSolution) -> TaskPlan:
    job, task = instance.tasks[0]
    routes = generate_routes(unfold(instance, job, task), solution.y)
    return TaskPlan(job.name, task.name, task.ps, solution.rate, routes)


def _best_by_enumeration(instance: Instance) -> float:
    """Try every spine for every worker of a leaf-spine network; loads come from the verifier."""
    job, task = instance.tasks[0]
    leaf_of, ps_leaf = instance.leaf_of, instance.leaf_of[task.ps]
    spines = [switch.name for switch in instance.switches if switch.tier == 1]
    remote = [worker for worker in job.workers if leaf_of[worker] != ps_leaf]
    local = {w: WorkerRoute((w, ps_leaf, task.ps)) for w in job.workers if leaf_of[w] == ps_leaf}
    best = 0.0
    for choice in product(spines, repeat=len(remote)):
        routes = {w: WorkerRoute((w, leaf_of[w], s, ps_leaf, task.ps)) for w, s in zip(remote, choice, strict=True)}
        report = verify(instance, [TaskPlan(job.name, task.name, task.ps, 1e-9, {**local, **routes})])
        if report.ok:
            loads = report.flows.items()
            best = max(best, min(instance.capacity[hop] / n for hop, flows in loads for n in flows.values()))
    return best


def test_solve_task__figure_1_without_aggregation_gives_a_fifth() -> None:
    assert _solve(figure_1([])).rate == pytest.approx(1 / 5)


def test_solve_task__figure_1_with_three_aggregators_gives_the_whole_link() -> None:
    solution = _solve(figure_1(["L1", "L2", "S1"]))
    assert solution.rate == pytest.approx(1.0)
    assert solution.proven


def test_solve_task__figure_3_with_all_leaves_but_no_spine_cannot_pass_a_half() -> None:
    assert _solve(figure_1(["L0", "L1", "L2", "L3"])).rate == pytest.approx(0.5)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    share=st.sampled_from([0.0, 0.3, 0.6, 1.0]),
    pipelines=st.integers(1, 3),
    slow=st.sampled_from([100.0, 40.0, 25.0]),
    ps_leaf=st.booleans(),
)
def test_solve_task__equals_enumeration(seed: int, share: float, pipelines: int, slow: float, ps_leaf: bool) -> None:
    instance = leaf_spine(
        leaves=3,
        spines=3,
        hosts_per_leaf=3,
        hardware=Hardware(share=share, pipelines=pipelines, mapping="interleaved"),
        workload=Workload(workers=5),
        seed=seed,
    )
    if not ps_leaf:
        switches = tuple(replace(s, programmable=s.programmable and s.name != "leaf0") for s in instance.switches)
        instance = replace(instance, switches=switches)
    links = tuple(replace(k, gbps=slow) if k.b == f"spine{seed % 3}" else k for k in instance.links)
    instance = replace(instance, links=links)
    solution = _solve(instance)
    assert solution.proven
    assert solution.rate == pytest.approx(_best_by_enumeration(instance))


@settings(max_examples=60, deadline=None)
@given(instances())
def test_solve_task__routes_pass_the_verifier_and_attain_the_rate(instance: Instance) -> None:
    solution = _solve(instance)
    plan = _plan(instance, solution)
    assert verify(instance, [plan]).ok, verify(instance, [plan]).faults
    assert solution.proven
    assert solution.rate == pytest.approx(min(rate_of(unfold(instance, *instance.tasks[0]), solution.y), 100.0))
    assert not verify(instance, [replace(plan, rate=plan.rate * 1.01)]).ok


@settings(max_examples=30, deadline=None)
@given(instances(), st.randoms(use_true_random=False))
def test_solve_task__more_bandwidth_is_never_slower(instance: Instance, random: object) -> None:
    links = tuple(replace(link, gbps=link.gbps * random.choice([1, 1, 2])) for link in instance.links)  # type: ignore[attr-defined]
    assert _solve(replace(instance, links=links)).rate >= _solve(instance).rate * (1 - 1e-9)


@settings(max_examples=30, deadline=None)
@given(instances(), st.integers(0, 1000))
def test_solve_task__one_more_aggregator_is_never_slower(instance: Instance, pick: int) -> None:
    chosen = instance.switches[pick % len(instance.switches)].name
    upgraded = tuple(replace(s, programmable=s.programmable or s.name == chosen) for s in instance.switches)
    assert _solve(replace(instance, switches=upgraded)).rate >= _solve(instance).rate * (1 - 1e-9)


@settings(max_examples=30, deadline=None)
@given(instances())
def test_solve_task__flat_pipelines_are_never_slower(instance: Instance) -> None:
    def flat(switch: Switch) -> Switch:
        return replace(switch, pipelines=1, ports=tuple(replace(port, pipeline=0) for port in switch.ports))

    merged = replace(instance, switches=tuple(flat(switch) for switch in instance.switches))
    assert _solve(merged).rate >= _solve(instance).rate * (1 - 1e-9)


@settings(max_examples=20, deadline=None)
@given(instances())
def test_solve_task__is_deterministic(instance: Instance) -> None:
    first, second = _solve(instance), _solve(instance)
    assert first.rate == second.rate
    assert np.array_equal(first.y, second.y)


def test_solve_task__papers_cluster_is_proven_in_milliseconds() -> None:
    solutions = [_solve(leaf_spine(seed=seed)) for seed in range(20)]
    assert all(solution.proven for solution in solutions)
    assert median(solution.seconds for solution in solutions) < 1.0
    assert {round(100 / solution.rate, 6) for solution in solutions} <= {3.0, 4.0, 5.0, 6.0, 7.0}
