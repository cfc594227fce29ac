"""ARO among the alternatives, where the routing planner is installed."""

from __future__ import annotations

import sys

import pytest
from example_clusters import fabric

from mlt._shared.extras import how_to_install
from mlt.planners.auto.alternatives import Alternative, Skipped, aleph
from mlt.planners.auto.alternatives_routing import routed
from mlt.planners.auto.ranking import plan_auto
from mlt.planners.plan import dump_plan
from mlt.planners.plan.link_load import arc_bandwidths, most_loaded
from mlt.planners.show.explain import job_loads, planned_time, tree_feeds_routes


def test_routed__without_aggregating_switches_is_skipped() -> None:
    outcome = routed(*fabric(aggregates=False), seed=0)
    assert outcome == Skipped("aro", "no switch of the cluster aggregates")


def test_routed__without_the_planner_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.sparse.csgraph", None)
    outcome = routed(*fabric(), seed=0)
    assert isinstance(outcome, Skipped)
    assert how_to_install("plan") in outcome.reason


def test_routed__in_network_aggregation_wins_where_the_server_is_narrow() -> None:
    pytest.importorskip("highspy")
    cluster, job = fabric()
    result = plan_auto(cluster, job)
    assert result.ranked[0].name == "aro"
    assert result.ranked[0].time == pytest.approx(100e6 * 8 / 10e9)  # one stream reaches the server at line rate
    entry = result.plan.job("j")
    assert entry.routing is not None
    busiest = most_loaded(job_loads(cluster, entry), arc_bandwidths(cluster))
    assert busiest is not None
    assert busiest[1] <= 1 + 1e-6
    assert dump_plan(result.plan) == dump_plan(plan_auto(cluster, job).plan)


def test_routed__from_the_heads_of_a_tree() -> None:
    pytest.importorskip("highspy")
    cluster, job = fabric(strong=4)
    tree = aleph(cluster, job, method="m-wcha")
    assert isinstance(tree, Alternative)
    both = routed(cluster, job, seed=0, tree=tree)
    assert isinstance(both, Alternative)
    assert tree_feeds_routes(both.sections)
    time = planned_time(both.sections, job)
    assert time is not None
    assert both.time >= time * (1 - 1e-9)
