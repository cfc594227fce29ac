"""The plan file: optional sections, checks, and whether it belongs to a cluster."""

from __future__ import annotations

import pytest

from mlt.planners._shared.documents import InputError
from mlt.planners.byteps.load_assignment import plan_assignment
from mlt.planners.cluster import Cluster, Host, Job
from mlt.planners.plan import JobPlan, Plan, Route, Routing, TaskRoutes, dump_plan, new_plan, parse_plan


@pytest.fixture
def cluster() -> Cluster:
    hosts = tuple(Host(name=f"h{i}", bandwidth=10e9) for i in range(5))
    job = Job(name="j", workers=("h0", "h1", "h2"), servers=("h3", "h4"), model_size=97e6)
    return Cluster(name="lab", hosts=hosts, jobs=(job,))


def test_plan__sections_are_independent(cluster: Cluster) -> None:
    plan = new_plan(cluster, seed=7)
    plan = plan.with_job(JobPlan(job="j", assignment=plan_assignment(cluster, cluster.jobs[0])))
    plan = plan.with_job(plan.job("j").model_copy(update={"notes": ("second planner",)}))
    assert len(plan.jobs) == 1
    assert plan.job("j").assignment is not None
    assert plan.job("j").notes == ("second planner",)
    assert plan.job("other").assignment is None


def test_plan__round_trips_through_json(cluster: Cluster) -> None:
    plan = new_plan(cluster).with_job(JobPlan(job="j", assignment=plan_assignment(cluster, cluster.jobs[0])))
    assert parse_plan(dump_plan(plan)) == plan


def test_plan__rejects_ranges_that_do_not_tile(cluster: Cluster) -> None:
    plan = new_plan(cluster).with_job(JobPlan(job="j", assignment=plan_assignment(cluster, cluster.jobs[0])))
    text = dump_plan(plan)
    begin = plan.jobs[0].assignment.services[1].hash_begin  # type: ignore[union-attr]
    broken = text.replace(f'"hash_begin": {begin}', f'"hash_begin": {begin + 1}', 1)
    with pytest.raises(InputError, match=r"plan:\d+: .*expected a range that begins at"):
        parse_plan(broken)


def test_plan__rejects_a_job_planned_twice(cluster: Cluster) -> None:
    with pytest.raises(InputError, match="planned twice"):
        Plan(cluster="lab", cluster_digest="", jobs=(JobPlan(job="j"), JobPlan(job="j")))


def test_mismatches__plan_of_another_cluster(cluster: Cluster) -> None:
    plan = new_plan(cluster).with_job(JobPlan(job="j", assignment=plan_assignment(cluster, cluster.jobs[0])))
    assert plan.mismatches(cluster) == []
    smaller = Cluster(name="lab", hosts=cluster.hosts[:2])
    (problem,) = plan.mismatches(smaller)
    assert problem.message == (
        "a plan for another version of cluster 'lab' "
        "(the present one has no job 'j', no node 'h2', no node 'h3' and 1 more)"
    )
    (problem,) = plan.mismatches(smaller.model_copy(update={"name": "site"}))
    assert problem.message == "a plan for another cluster: 'lab', not 'site'"


def test_mismatches__unknown_node_on_a_route(cluster: Cluster) -> None:
    task = TaskRoutes(server="h3", rate=1, routes=(Route(source="h0", destination="h3", path=("h0", "leaf", "h3")),))
    plan = new_plan(cluster).with_job(JobPlan(job="j", routing=Routing(method="aro", tasks=(task,))))
    (problem,) = plan.mismatches(cluster)
    assert "no node 'leaf'" in problem.message
