"""Queue thresholds in ``mlt plan auto``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from checks import names

from mlt.planners._shared.documents import InputError
from mlt.planners.auto.ranking import plan_auto
from mlt.planners.auto.switch_thresholds import SwitchPlan, plan_thresholds
from mlt.planners.cluster import Cluster, Host, Job, Link, Switch
from mlt.planners.plan import dump_plan, parse_plan


def cluster_with(buffer: float | None) -> Cluster:
    hosts = tuple(Host(name=f"h{i}", bandwidth=10e9) for i in range(3))
    switches = (Switch(name="leaf", buffer=buffer), Switch(name="other", tier=2, buffer=buffer))
    links = [Link(a=f"h{i}", b="leaf", bandwidth=10e9) for i in range(3)] + [Link(a="leaf", b="other", bandwidth=10e9)]
    job = Job(name="j", workers=("h0", "h1"), servers=("h2",), model_size=4e6)
    return Cluster(hosts=hosts, switches=switches, links=tuple(links), jobs=(job,))


@pytest.fixture
def layers(tmp_path: Path) -> Path:
    path = tmp_path / "layers.json"
    path.write_text(json.dumps([{"name": f"layer{i}", "elements": 10_000 * (i + 1)} for i in range(12)]))
    return path


def test_plan_thresholds__names_its_requirement(layers: Path) -> None:
    assert "--layers" in str(plan_thresholds(cluster_with(4e6), None))
    assert "states its buffer" in str(plan_thresholds(cluster_with(None), layers))
    with pytest.raises(InputError, match=names("--layers", "missing.json", "cannot be read")):  # not ignored
        plan_thresholds(cluster_with(None), layers.with_name("missing.json"))


def test_plan_thresholds__every_switch_and_class(layers: Path) -> None:
    cluster = cluster_with(4e6)
    found = plan_thresholds(cluster, layers)
    assert isinstance(found, SwitchPlan)
    assert {threshold.switch for threshold in found.thresholds} == {"leaf", "other"}
    leaf = [threshold for threshold in found.thresholds if threshold.switch == "leaf"]
    minima = [threshold.red_min_bytes for threshold in leaf]
    assert minima == sorted(minima)  # front layers, in the higher queues, are dropped first
    assert all(t.limit_bytes is not None and t.red_min_bytes < t.limit_bytes for t in leaf)
    plan = plan_auto(cluster, cluster.jobs[0], layers_file=layers).plan
    assert plan.thresholds == found.thresholds
    assert plan.switch_policy == found.policy
    assert parse_plan(dump_plan(plan)) == plan


def test_plan_thresholds__bad_layers_are_rejected(tmp_path: Path) -> None:
    bad = tmp_path / "layers.json"
    bad.write_text("[]")
    with pytest.raises(InputError, match=r"layers\.json"):
        plan_thresholds(cluster_with(4e6), bad)
