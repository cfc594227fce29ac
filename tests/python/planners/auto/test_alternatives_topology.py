"""PSNet under ``plan_auto``, where the topology planner is installed."""

from __future__ import annotations

import sys

import pytest

from mlt._shared.extras import how_to_install
from mlt.planners.auto.alternatives import Alternative, Skipped
from mlt.planners.auto.alternatives_topology import prepare_ground
from mlt.planners.auto.ranking import plan_auto
from mlt.planners.cluster import Cluster, Host, Job, Link, Switch
from mlt.planners.plan import dump_plan, new_plan, parse_plan
from mlt.planners.plan.effective import has_circuit_switches
from mlt.planners.show.explain import explain_plan


def psnet_module() -> Cluster:
    """One SuperNode: two ToRs of two downlinks, four workers on a circuit switch, one server with a NIC per ToR."""
    hosts = [Host(name=f"w{i}", bandwidth=10e9) for i in range(4)] + [Host(name="ps", bandwidth=20e9)]
    switches = (
        Switch(name="ecs", kind="circuit", module=1),
        Switch(name="tor0", module=1),
        Switch(name="tor1", module=1),
        Switch(name="super", tier=2, module=1),
    )
    links = [Link(a=f"w{i}", b="ecs", bandwidth=10e9) for i in range(4)]
    links += [Link(a="ecs", b=f"tor{i // 2}", bandwidth=10e9) for i in range(4)]
    links += [Link(a=f"tor{i}", b=end, bandwidth=10e9) for i in range(2) for end in ("ps", "super")]
    job = Job(name="j", workers=("w0", "w1", "w2", "w3"), servers=("ps",), model_size=1e9)
    return Cluster(hosts=tuple(hosts), switches=switches, links=tuple(links), jobs=(job,))


def test_prepare_ground__without_the_planner_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlt.planners.psnet.plan_section", None)
    cluster = psnet_module()
    ground = prepare_ground(cluster, cluster.jobs[0], new_plan(cluster))
    assert isinstance(ground.outcome, Skipped)
    assert how_to_install("plan") in ground.outcome.reason
    assert ground.cluster.links == ()


def test_prepare_ground__a_packet_network_needs_nothing() -> None:
    cluster = Cluster(hosts=(Host(name="a", bandwidth=1),), jobs=(Job(name="j", workers=("a",), model_size=1),))
    ground = prepare_ground(cluster, cluster.jobs[0], new_plan(cluster))
    assert ground.outcome is None
    assert ground.cluster is cluster


def test_plan_auto__on_a_psnet_plans_circuits_and_times_the_rest_on_them() -> None:
    pytest.importorskip("mlt.planners.psnet.plan_section")
    cluster = psnet_module()
    ground = prepare_ground(cluster, cluster.jobs[0], new_plan(cluster))
    assert isinstance(ground.outcome, Alternative)
    assert not has_circuit_switches(ground.cluster)
    result = plan_auto(cluster, cluster.jobs[0])
    times = {alternative.name: alternative.time for alternative in result.ranked}
    # Two workers per ToR, each ToR one 10 Gbit/s NIC of the server: 2 GB over 10 Gbit/s.
    assert times["parameter server over psnet routes"] == pytest.approx(1.6, rel=1e-3)
    assert times["parameter server"] == pytest.approx(1.6, rel=1e-3)
    assert len(result.plan.circuits) == 4
    assert result.plan.job("j").placement is not None
    assert parse_plan(dump_plan(result.plan)) == result.plan
    # A ring needs no NIC of a server: 2 * 3/4 GB at 10 Gbit/s.
    assert result.plan.job("j").strategy == "all-reduce"
    text = explain_plan(cluster, result.plan)
    assert "Strategy: all-reduce" in text
    assert "communication: 1.2 s" in text


def test_plan_auto__a_job_that_does_not_fit_a_psnet_still_gets_a_plan() -> None:
    pytest.importorskip("mlt.planners.psnet.plan_section")
    cluster = psnet_module()
    odd = cluster.with_job(cluster.jobs[0].model_copy(update={"workers": ("w0", "ps"), "servers": ("w1",)}))
    result = plan_auto(odd, odd.jobs[0])
    assert any("psnet" in skipped.name for skipped in result.skipped)
    assert result.ranked
