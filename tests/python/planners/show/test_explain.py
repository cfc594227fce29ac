"""Words about a plan."""

from __future__ import annotations

import re

import pytest
from checks import assert_names

from mlt.planners.aleph.aggregation import plan_aggregation
from mlt.planners.byteps.load_assignment import plan_assignment
from mlt.planners.cluster import Cluster, Host, Job, Link, Switch
from mlt.planners.plan import Circuit, Estimate, JobPlan, Placement, Route, Routing, TaskRoutes, Threshold, new_plan
from mlt.planners.show.explain import baselines, explain_plan, job_loads, planned_time


@pytest.fixture
def cluster() -> Cluster:
    rates = {"w0": 10e9, "w1": 10e9, "w2": 10e9, "w3": 30e9, "ps0": 20e9}
    hosts = tuple(Host(name=name, bandwidth=rate, cpu_cores=8) for name, rate in rates.items())
    links = tuple(Link(a=name, b="leaf", bandwidth=40e9) for name in rates)
    job = Job(name="j", workers=("w0", "w1", "w2", "w3"), servers=("ps0",), model_size=4.2e9 / 8)
    return Cluster(name="lab", hosts=hosts, switches=(Switch(name="leaf"),), links=links, jobs=(job,))


def test_explain__motivating_example_in_words(cluster: Cluster) -> None:
    section = plan_aggregation(cluster, cluster.jobs[0]).section
    text = explain_plan(cluster, new_plan(cluster).with_job(JobPlan(job="j", aggregation=section)))
    assert "w3 <- w1, w2" in text
    assert_names(text, "2 streams", "4")
    assert "communication: 420 ms" in text
    assert_names(text, "parameter server", "840 ms", "2.00 times faster")
    assert_names(text, "ring all-reduce", "630 ms", "1.50 times faster")
    assert "100% of its bandwidth" in text


def test_explain__every_section(cluster: Cluster) -> None:
    route = Route(source="w0", destination="ps0", path=("w0", "leaf", "ps0"))
    entry = JobPlan(
        job="j",
        assignment=plan_assignment(cluster, cluster.jobs[0]),
        routing=Routing(method="aro", tasks=(TaskRoutes(server="ps0", rate=5e9, rate_bound=5e9, routes=(route,)),)),
        placement=Placement(method="psnet", modules=(1, 2), tor_of={"w0": "leaf"}),
        notes=("watch the uplink",),
    )
    plan = new_plan(cluster).with_job(entry)
    plan = plan.model_copy(
        update={
            "circuits": (Circuit(a="w0", b="leaf"),),
            "thresholds": (Threshold(queue=0, red_min_bytes=1, red_max_bytes=2),),
            "switch_policy": "strict",
        }
    )
    text = explain_plan(cluster, plan)
    for words in (
        "Load assignment (linear-programme)",
        "5 Gbit/s per worker, proven optimal",
        "Placement (psnet): 1 host over 1 ToR in modules 1, 2",
        "Note: watch the uplink",
        "1 circuit\n",
        "1 queue threshold\n",
        "switch policy: strict",
    ):
        assert words in text


def test_explain__one_module_and_a_baseline_as_fast(cluster: Cluster) -> None:
    before = baselines(cluster, cluster.jobs[0])["a plain parameter server"]
    placement = Placement(method="psnet", modules=(1,), tor_of={"w0": "leaf"}, time=before * 1.001)
    text = explain_plan(cluster, new_plan(cluster).with_job(JobPlan(job="j", placement=placement)))
    assert "1 host over 1 ToR in module 1\n" in text
    assert re.search(r"a plain parameter server would take \S+ m?s \(as long\)\n", text)


def test_explain__reports_a_plan_slower_than_none(cluster: Cluster) -> None:
    section = plan_aggregation(cluster, cluster.jobs[0], method="direct").section
    text = explain_plan(cluster, new_plan(cluster).with_job(JobPlan(job="j", aggregation=section)))
    assert_names(text, "ring all-reduce", "630 ms", "1.33 times slower")


def test_explain__empty_plan(cluster: Cluster) -> None:
    assert explain_plan(cluster, new_plan(cluster)) == "The plan decides nothing yet."


def test_planned_time__routes_over_tree_over_loads(cluster: Cluster) -> None:
    job = cluster.jobs[0]
    route = Route(source="w0", destination="ps0", path=("w0", "leaf", "ps0"))
    routing = Routing(method="aro", tasks=(TaskRoutes(server="ps0", rate=4.2e9, routes=(route,)),))
    tree = plan_aggregation(cluster, job).section
    assert planned_time(JobPlan(job="j", aggregation=tree, routing=routing), job) == pytest.approx(1.0)
    assert planned_time(JobPlan(job="j", aggregation=tree), job) == pytest.approx(0.42)
    assert planned_time(JobPlan(job="j"), job) is None


def test_job_loads__follow_the_tree(cluster: Cluster) -> None:
    loads = job_loads(cluster, JobPlan(job="j", aggregation=plan_aggregation(cluster, cluster.jobs[0]).section))
    assert loads["w3", "leaf"] == pytest.approx(30e9)  # one up, two results down to members
    assert loads["leaf", "ps0"] == pytest.approx(20e9)


@pytest.mark.parametrize(("strategy", "time", "arc", "load"), [
    ("all-reduce", 0.63, ("w0", "leaf"), 10e9),
    ("parameter-server", 0.84, ("leaf", "ps0"), 20e9),
])  # fmt: skip
def test_strategy_without_a_section__takes_its_estimate(
    cluster: Cluster, strategy: str, time: float, arc: tuple[str, str], load: float
) -> None:
    estimate = Estimate(name=strategy, iteration_time=time)
    entry = JobPlan.model_validate({"job": "j", "strategy": strategy, "estimates": (estimate,)})
    assert planned_time(entry, cluster.jobs[0]) == time
    assert job_loads(cluster, entry)[arc] == pytest.approx(load)
    assert f"Strategy: {strategy}" in explain_plan(cluster, new_plan(cluster).with_job(entry))
