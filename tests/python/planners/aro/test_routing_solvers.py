from __future__ import annotations

import contextlib
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from routing_cases import figure_1, instances
from typer.testing import CliRunner

from mlt.planners.aro.bounds import Objective, best_rates
from mlt.planners.aro.contract import contract
from mlt.planners.aro.graph import unfold
from mlt.planners.aro.highs import Rows, Verdict, solve
from mlt.planners.aro.instance import Instance
from mlt.planners.aro.joint import route_jointly
from mlt.planners.aro.multiple import Effort, plan_routes
from mlt.planners.aro.routes import TaskPlan, generate_routes
from mlt.planners.aro.single import solve_task
from mlt.planners.aro.verify import verify
from mlt.planners.cluster import parse_cluster
from studies.aro import cpsat
from studies.aro.__main__ import main
from studies.aro.accelerate import Accelerations, plan_accelerated
from studies.aro.cpsat import Question, plain, solve_quantised
from studies.aro.generate import Hardware, Workload, leaf_spine
from studies.aro.gurobi import using_gurobi
from studies.aro.quantisation import Quantisation
from studies.aro.whole import solve_whole

needs_cpsat = pytest.mark.skipif(not cpsat.available(), reason="OR-Tools is not installed")


def _knapsack() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, Rows]:
    """Maximise 5a + 4b + 3c under 2a + 3b + c <= 5 with a, b, c in {0, 1}: a and b, value 9."""
    rows = Rows()
    rows.add(np.array([0, 1, 2]), np.array([2.0, 3.0, 1.0]), -np.inf, 5.0)
    return np.array([-5.0, -4.0, -3.0]), np.zeros(3), np.ones(3), np.ones(3, dtype=bool), rows


@pytest.mark.parametrize("solver", ["highs", "gurobi"])
def test_solve__gives_equal_results_with_either_solver(solver: str) -> None:
    if solver == "gurobi":
        pytest.importorskip("gurobipy")
    with using_gurobi() if solver == "gurobi" else contextlib.nullcontext():
        answer = solve(*_knapsack(), seconds=10.0)
        assert answer.verdict is Verdict.OPTIMAL
        assert answer.x is not None
        assert answer.x == pytest.approx([1, 1, 0])
        assert answer.objective == pytest.approx(-9.0)
        cost, lower, upper, integer, rows = _knapsack()
        rows.add(np.array([0, 1, 2]), np.ones(3), 4.0, np.inf)
        assert solve(cost, lower, upper, integer, rows, seconds=10.0).verdict is Verdict.INFEASIBLE


@settings(max_examples=25, deadline=None)
@given(instances())
def test_solve_whole__agrees_with_the_search(instance: Instance) -> None:
    graph = unfold(instance, *instance.tasks[0])
    best = solve_task(graph)
    whole = solve_whole(graph, seconds=20.0, start=best.y, symmetry=False)
    assert whole.proven
    assert whole.rate == pytest.approx(best.rate)
    ordered = solve_whole(graph, seconds=20.0)
    assert ordered.rate == pytest.approx(best.rate)


@needs_cpsat
def test_solve_quantised__without_time_claims_no_bound() -> None:
    instance = leaf_spine(seed=0, workload=Workload(jobs=3, tasks=2, workers=100))
    graphs = [unfold(instance, job, task) for job, task in instance.tasks]
    outcome = solve_quantised(
        Question(
            instance=instance,
            bundled=plain(graphs),
            objective=Objective(),
            quantisation=Quantisation(100, 100.0),
            alone=[25.0] * 6,
            seconds=0.01,
        )
    )
    assert outcome.bound >= 2 * 25.0


@needs_cpsat
@pytest.mark.parametrize("seed", range(2))
def test_solve_quantised__agrees_with_the_search(seed: int) -> None:
    hardware = Hardware(share=0.4, pipelines=2)
    instance = leaf_spine(
        leaves=4, spines=4, hosts_per_leaf=6, hardware=hardware, workload=Workload(workers=14), seed=seed
    )
    graph = unfold(instance, *instance.tasks[0])
    levels = Quantisation(60, 100.0)
    outcome = solve_quantised(
        Question(
            instance=instance,
            bundled=plain([graph]),
            objective=Objective(mu=0.0),
            quantisation=levels,
            alone=[100.0],
            seconds=20.0,
        )
    )
    assert outcome.verdict is Verdict.OPTIMAL
    assert outcome.rates is not None
    assert outcome.flows is not None
    (quantised,) = plan_accelerated(instance, accelerations=Accelerations(qsr_levels=60)).plans
    assert outcome.rates[0] == pytest.approx(quantised.rate)
    job, task = instance.tasks[0]
    plan = TaskPlan(job.name, task.name, task.ps, float(outcome.rates[0]), generate_routes(graph, outcome.flows[0]))
    assert verify(instance, [plan]).ok


@needs_cpsat
def test_solve_quantised__bundles_only_relax() -> None:
    instance = leaf_spine(
        leaves=5,
        spines=5,
        hosts_per_leaf=8,
        hardware=Hardware(share=0.3),
        workload=Workload(jobs=2, workers=10),
        seed=3,
    )
    graphs = [unfold(instance, job, task) for job, task in instance.tasks]
    found = {}
    for name, bundled in {"plain": plain(graphs), "bundled": contract(graphs)}.items():
        outcome = solve_quantised(
            Question(
                instance=instance,
                bundled=bundled,
                objective=Objective(),
                quantisation=Quantisation(20, 100.0),
                alone=[solve_task(graph).rate for graph in graphs],
                seconds=20.0,
            )
        )
        assert outcome.rates is not None
        found[name] = Objective().value(instance, outcome.rates.tolist()), outcome.bound
    assert found["bundled"][1] >= found["plain"][0] * (1 - 1e-9)


def test_contract__bundles_the_common_spines_of_each_pipeline() -> None:
    instance = leaf_spine(seed=0)
    graph = unfold(instance, *instance.tasks[0])
    bundled = contract([graph])
    common = [s.name for s in instance.switches if s.tier == 1 and not s.programmable]
    left = [node.name for node in bundled.graphs[0].nodes if node.name in common]
    assert len(left) == 4
    widths = {name: int(bundled.width[graph.links.index((name, "leaf0"))]) for name in left}
    assert sum(widths.values()) == len(common)


def test_best_rates__raise_rates_to_what_the_flows_allow() -> None:
    instance = figure_1(["L1", "L2", "S1"])
    graph = unfold(instance, *instance.tasks[0])
    (rate,) = best_rates(instance, [graph], [solve_task(graph).y], Objective())
    assert rate == pytest.approx(1.0)


def test_route_jointly__proves_that_rates_are_out_of_reach() -> None:
    instance = leaf_spine(seed=0, workload=Workload(jobs=2, workers=60), leaves=8, spines=4, hosts_per_leaf=20)
    graphs = [unfold(instance, job, task) for job, task in instance.tasks]
    top = np.array([solve_task(graph).rate for graph in graphs])
    assert route_jointly(graphs, top * 1.05, seconds=20.0)[0] is Verdict.INFEASIBLE
    verdict, flows = route_jointly(graphs, top * 0.3, seconds=20.0)
    assert verdict is Verdict.FEASIBLE
    assert flows is not None


@needs_cpsat
def test_plan_routes__bound_holds_for_the_rates_of_cpsat() -> None:
    """Six tasks share two aggregating spines: the rates of the links' bound cannot be routed."""
    instance = leaf_spine(seed=0, workload=Workload(jobs=3, tasks=2, workers=100))
    solution = plan_routes(instance, effort=Effort(seconds=8.0, joint_seconds=0.5, orders=2))
    assert solution.value >= 50.0
    assert verify(instance, solution.plans).ok
    graphs = [unfold(instance, job, task) for job, task in instance.tasks]
    levels = Quantisation(840, instance.fastest_gbps)  # every b/k up to k = 8 is a whole number of steps
    outcome = solve_quantised(
        Question(
            instance=instance,
            bundled=contract(graphs),
            objective=Objective(),
            quantisation=levels,
            alone=[float(plan.bound or 0.0) for plan in solution.plans],
            seconds=4.0,
        )
    )
    one_step_each = 2 * levels.step * (1 + 3 * Objective().mu)  # each of a job's two tasks loses less than a step
    assert solution.value <= outcome.bound + one_step_each


@pytest.mark.parametrize("sweep", ["sjst", "reductions", "grid"])
def test_experiments__write_their_results(sweep: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    arguments = [sweep, "--out", str(tmp_path), "--seeds", "1"]
    result = CliRunner().invoke(main, [*arguments, "--other-seeds", "1"] if sweep == "sjst" else arguments)
    assert result.exit_code == 0, result.output
    assert json.loads((tmp_path / f"{sweep}.json").read_text())
    assert sweep == "grid" or list(tmp_path.glob("*.png"))


def test_experiments__many_runs_the_requested_shapes(tmp_path: Path) -> None:
    arguments = ["many", "--only", "1J1T", "--seeds", "2", "--seconds", "2", "--out", str(tmp_path)]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    found = json.loads((tmp_path / "many.json").read_text())["results"]
    assert [name.split(",")[0] for name in found] == ["SJMT 1J1T"] * 2
    assert all(row["GRID total"]["mean"] < row["ARO total"]["mean"] for row in found.values())
    assert not list(tmp_path.glob("*.png"))


def test_experiments__print_an_instance_as_a_cluster_file() -> None:
    result = CliRunner().invoke(main, ["instance", "--fat-tree", "4", "--workers", "6", "--ps-leaf-on-top"])
    assert result.exit_code == 0, result.output
    cluster = parse_cluster(result.output)
    assert all(switch.port_pipelines for switch in cluster.switches)
    assert "on top of the 20%" in result.output
