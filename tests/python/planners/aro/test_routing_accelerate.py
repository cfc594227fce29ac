from __future__ import annotations

from statistics import pvariance

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from routing_cases import QUICK, figure_1, instances

from mlt.planners.aro.flow import flows_that_fit
from mlt.planners.aro.graph import Kind, unfold
from mlt.planners.aro.highs import Verdict
from mlt.planners.aro.instance import Instance, Job, Link, Port, Switch, Task
from mlt.planners.aro.multiple import plan_routes
from mlt.planners.aro.single import NoRoutesError, routes_at, solve_task
from mlt.planners.aro.verify import verify
from studies.aro.accelerate import (
    ALL,
    Accelerations,
    alternatives,
    only_programmable,
    plan_accelerated,
    prune,
    prune_aggregators,
    scores,
)
from studies.aro.generate import Hardware, Workload, fat_tree, leaf_spine
from studies.aro.quantisation import Quantisation


def _figure_6() -> Instance:
    """A programmable leaf with two busy pipelines, common leaves with 3, 1 and 0 workers, two aggregating spines.

    AA0's pipelines may receive 2 + 3 and 1 flows, AA1's 2 and 3 + 1: variances 8 and 2 in the paper's sums of squares.
    """
    under = {"A": ["W0", "W1", "W2"], "B": ["W3", "W4", "W5"], "C": ["W6"], "D": ["ps"]}
    leaf_pipelines = {"W0": 0, "W1": 0, "W2": 1}
    spine_pipelines = {"AA0": {"A": 0, "B": 0, "C": 1, "D": 1}, "AA1": {"A": 0, "B": 1, "C": 1, "D": 0}}
    switches = [
        Switch(
            leaf,
            0,
            tuple(Port(peer, n, leaf_pipelines.get(peer, 0)) for n, peer in enumerate([*hosts, *spine_pipelines])),
            leaf == "A",
            2,
        )
        for leaf, hosts in under.items()
    ]
    for spine, pipelines in spine_pipelines.items():
        ports = tuple(Port(leaf, n, pipelines[leaf]) for n, leaf in enumerate(under))
        switches.append(Switch(spine, 1, ports, True, 2))
    links = [Link(host, leaf, 1.0) for leaf, hosts in under.items() for host in hosts]
    links += [Link(leaf, spine, 1.0) for leaf in under for spine in spine_pipelines]
    workers = tuple(f"W{i}" for i in range(7))
    return Instance(tuple(switches), ("ps", *workers), tuple(links), (Job("j", workers, (Task("t", "ps"),)),))


def test_scores__are_those_of_figure_6() -> None:
    instance = _figure_6()
    found = scores(unfold(instance, *instance.tasks[0]))
    assert sorted(found["AA0"]) == [1, 5]
    assert sorted(found["AA1"]) == [2, 4]
    assert [pvariance(found[name]) * 2 for name in ("AA0", "AA1")] == [8, 2]


def test_prune_aggregators__prefers_even_scores_as_in_figure_6() -> None:
    instance = _figure_6()
    (graph,) = prune_aggregators(instance, [unfold(instance, *instance.tasks[0])], 0.5)
    assert {node.name for node in graph.nodes if node.kind is Kind.OP} == {"A", "AA1"}


def test_prune_aggregators__deals_aggregators_out_in_turn() -> None:
    instance = leaf_spine(seed=1, hardware=Hardware(share=0.5), workload=Workload(jobs=2, workers=100))
    graphs = [unfold(instance, job, task) for job, task in instance.tasks]
    (group,) = alternatives(instance, graphs[0])
    pruned = prune_aggregators(instance, graphs, 0.5)
    kept = [{node.name for node in g.nodes if node.name in group} for g in pruned]
    assert [len(names) for names in kept] == [len(group) // 2] * 2
    assert not kept[0] & kept[1]


def test_alternatives__of_a_fat_tree_are_grouped_by_pod_and_tier() -> None:
    instance = fat_tree(k=4, hardware=Hardware(share=1.0), workload=Workload(workers=15))
    groups = {frozenset(group) for group in alternatives(instance, unfold(instance, *instance.tasks[0]))}
    assert frozenset({"agg1_0", "agg1_1"}) in groups
    assert frozenset({"core0_0", "core0_1", "core1_0", "core1_1"}) in groups


def test_only_programmable__is_none_without_aggregating_spines() -> None:
    instance = figure_1(["L1"])
    assert only_programmable(instance, unfold(instance, *instance.tasks[0])) is None


@settings(max_examples=30, deadline=None)
@given(instances(jobs=2))
def test_plan_routes__accelerated_plans_are_valid_and_never_better_than_the_bound(instance: Instance) -> None:
    accelerated = plan_accelerated(instance, accelerations=Accelerations(sro=True, app_share=0.6), effort=QUICK)
    assert verify(instance, accelerated.plans).ok
    assert accelerated.value <= plan_routes(instance, effort=QUICK).bound * (1 + 1e-9)


def test_plan_routes__all_accelerations_lose_little_on_the_papers_cluster() -> None:
    ratio = []
    for seed in range(8):
        instance = leaf_spine(seed=seed)
        ratio.append(plan_accelerated(instance, accelerations=ALL).value / plan_routes(instance, effort=QUICK).value)
    assert max(ratio) <= 1.0
    assert sum(ratio) / len(ratio) > 0.8


@pytest.mark.parametrize(("share", "levels"), [(0.0, 100), (1.5, 100), (0.6, 0)])
def test_accelerations__reject_bad_settings(share: float, levels: int) -> None:
    with pytest.raises(ValueError, match=r"APP keeps|QSR needs"):
        Accelerations(app_share=share, qsr_levels=levels)


def test_prune__drops_what_then_leads_nowhere() -> None:
    instance = figure_1(["S1"])
    graph = unfold(instance, *instance.tasks[0])
    spine = next(v for v, node in enumerate(graph.nodes) if node.name == "S1" and node.kind is Kind.INP)
    pruned = prune(graph, [spine])
    assert pruned is not None
    assert all(node.name != "S1" for node in pruned.nodes)
    assert pruned.supply.sum() == 5
    assert np.isfinite(pruned.capacity).all()


def test_prune__is_none_when_a_worker_is_cut_off() -> None:
    instance = figure_1([])
    graph = unfold(instance, *instance.tasks[0])
    assert prune(graph, [v for v, node in enumerate(graph.nodes) if node.name in ("S0", "S1")]) is None


@settings(max_examples=20, deadline=None)
@given(instances(), st.sampled_from([7, 20, 100]))
def test_plan_accelerated__quantised_rates_are_whole_steps_and_the_highest_that_fit(
    instance: Instance, levels: int
) -> None:
    quantisation = Quantisation(levels, instance.fastest_gbps)
    (graph,) = quantisation.graphs([unfold(instance, *instance.tasks[0])])
    try:
        (plan,) = plan_accelerated(instance, accelerations=Accelerations(qsr_levels=levels)).plans
        steps = quantisation.steps(plan.rate)
    except NoRoutesError:
        steps = 0
    assert steps == 0 or plan.rate == pytest.approx(steps * quantisation.step)
    assert steps * quantisation.step <= solve_task(unfold(instance, *instance.tasks[0])).rate * (1 + 1e-9)
    faster = (steps + 1) * quantisation.step
    if faster <= graph.access_gbps:
        verdict, _ = routes_at(graph, flows_that_fit(graph.capacity, faster), seconds=20.0)
        assert verdict is Verdict.INFEASIBLE
