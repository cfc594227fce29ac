from __future__ import annotations

from pathlib import Path

import pytest
from checks import names
from typer.testing import CliRunner

from mlt.cli.plan_routing import app
from mlt.planners._shared.documents import InputError
from mlt.planners.aro.convert import add_to_plan, instance_of
from mlt.planners.aro.multiple import plan_routes
from mlt.planners.cluster import Cluster, dump_cluster, parse_cluster
from mlt.planners.plan import dump_plan, new_plan, parse_plan, read_plan
from studies.aro.cluster_file import cluster_of
from studies.aro.generate import Hardware, Workload, fat_tree, leaf_spine

SMALL = leaf_spine(
    leaves=4, spines=3, hosts_per_leaf=6, hardware=Hardware(share=0.5), workload=Workload(jobs=2, workers=8), seed=2
)


def test_instance_of__reads_back_what_cluster_of_wrote() -> None:
    for instance in (SMALL, fat_tree(k=4, workload=Workload(workers=6), seed=1)):
        cluster = parse_cluster(dump_cluster(cluster_of(instance)))
        again = instance_of(cluster)
        assert again.switches == instance.switches
        assert set(again.links) == set(instance.links)
        assert [job.workers for job in again.jobs] == [job.workers for job in instance.jobs]
        assert plan_routes(again).value == plan_routes(instance).value


def test_instance_of__splits_port_classes_by_default() -> None:
    cluster = cluster_of(SMALL)
    bare = [switch.model_copy(update={"port_pipelines": None}) for switch in cluster.switches]
    implicit = Cluster(hosts=cluster.hosts, switches=tuple(bare), links=cluster.links, jobs=cluster.jobs)
    assert instance_of(implicit).switches == SMALL.switches


def test_instance_of__takes_the_smaller_of_link_and_host_bandwidth() -> None:
    cluster = cluster_of(SMALL)
    slow = cluster.hosts[0].model_copy(update={"bandwidth": 10e9})
    changed = cluster.model_copy(update={"hosts": (slow, *cluster.hosts[1:])})
    fresh = Cluster.model_validate(changed.model_dump())
    assert instance_of(fresh).capacity["host0", "leaf0"] == 10.0


def test_instance_of__rejects_unknown_jobs_and_jobs_without_servers() -> None:
    cluster = cluster_of(SMALL)
    with pytest.raises(InputError, match="no job is named 'nobody'"):
        instance_of(cluster, jobs=["nobody"])
    lonely = cluster.jobs[0].model_copy(update={"servers": ()})
    with pytest.raises(InputError, match=names("jobs[0].servers")):
        instance_of(cluster.model_copy(update={"jobs": (lonely,)}), jobs=["job0"])


def test_instance_of__rejects_circuit_switches() -> None:
    cluster = cluster_of(SMALL)
    circuit = cluster.switches[0].model_copy(update={"kind": "circuit"})
    with pytest.raises(InputError, match="circuit switch"):
        instance_of(cluster.model_copy(update={"switches": (circuit, *cluster.switches[1:])}))


def test_add_to_plan__fills_the_routing_section_and_matches_the_cluster() -> None:
    cluster = cluster_of(SMALL)
    instance = instance_of(cluster)
    solution = plan_routes(instance)
    plan = add_to_plan(new_plan(cluster), instance, solution, cluster=cluster)
    again = parse_plan(dump_plan(plan))
    assert again == plan
    assert not again.mismatches(cluster)
    section = again.job("job1").routing
    assert section is not None
    assert section.objective == "MJMT"
    (task,) = section.tasks
    assert task.rate == pytest.approx(solution.plans[1].rate * 1e9)
    assert {route.source for route in task.routes} == set(instance.jobs[1].workers)
    assert section.ecmp
    assert any(route.aggregated_at and route.segments for route in task.routes)


def test_route_command__writes_plan_and_exports(tmp_path: Path) -> None:
    cluster_file, plan_file = tmp_path / "cluster.yaml", tmp_path / "plan.json"
    cluster_file.write_text(dump_cluster(cluster_of(SMALL)))
    segments = tmp_path / "segments.txt"
    arguments = [str(cluster_file), "-o", str(plan_file), "--srv6", str(segments)]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert "Proven optimal" in result.output
    assert read_plan(plan_file).job("job0").routing is not None
    assert len(segments.read_text().splitlines()) == 16


def addressed(form: str) -> Cluster:
    """The small cluster, whose hosts have addresses of this form."""
    cluster = cluster_of(SMALL)
    hosts = [host.model_copy(update={"address": form.format(i + 1)}) for i, host in enumerate(cluster.hosts)]
    return Cluster.model_validate(cluster.model_copy(update={"hosts": tuple(hosts)}).model_dump())


def test_add_to_plan__gives_ipv4_hosts_no_segment_lists_and_says_so() -> None:
    solution = plan_routes(SMALL)
    lists = {}
    for form in ("10.0.0.{}", "fd00::{}"):
        cluster = addressed(form)
        plan = add_to_plan(new_plan(cluster, seed=0), instance_of(cluster), solution, cluster=cluster)
        plan = add_to_plan(plan, instance_of(cluster), solution, cluster=cluster)  # the note is there once
        job = plan.job("job0")
        assert job.routing is not None
        lists[form] = [route.segments for task in job.routing.tasks for route in task.routes if route.segments]
        notes = [note for note in job.notes if "IPv4" in note]
        assert len(notes) == (1 if form.startswith("10.") else 0)
    assert lists["10.0.0.{}"] == []
    assert lists["fd00::{}"]


def test_route_command__rejects_segment_lists_for_ipv4_hosts(tmp_path: Path) -> None:
    cluster_file, segments = tmp_path / "cluster.yaml", tmp_path / "segments.txt"
    cluster_file.write_text(dump_cluster(addressed("10.0.0.{}")))
    result = CliRunner().invoke(app, [str(cluster_file), "--srv6", str(segments)])
    assert result.exit_code == 2
    assert "--srv6" in result.output
    assert "IPv4" in result.output
    assert not segments.exists()


def test_route_command__rejects_bad_input_before_writing(tmp_path: Path) -> None:
    cluster_file, plan_file = tmp_path / "cluster.yaml", tmp_path / "plan.json"
    cluster_file.write_text(dump_cluster(cluster_of(SMALL)).replace("host3", "host_unknown", 1))
    result = CliRunner().invoke(app, [str(cluster_file), "-o", str(plan_file)])
    assert result.exit_code == 2
    assert not plan_file.exists()
