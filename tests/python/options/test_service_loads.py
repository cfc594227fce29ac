"""Loads of summation services: equations 1 and 2 by the ranks' hosts, the plan of MLT_PLAN, and wrong ones."""

from __future__ import annotations

import logging
from collections import Counter
from itertools import product
from pathlib import Path

import pytest
from checks import assert_names

from mlt.errors import ConfigError
from mlt.options.service_loads import _warn_of_no_services, by_default, by_hosts, check_plan, resolve
from mlt.planners.byteps.load_assignment import assign_loads, closed_form_loads, plan_assignment
from mlt.planners.cluster import Cluster, Job, parse_cluster
from mlt.planners.plan import Plan, dump_plan, new_plan


def hosts_of(workers: int, spare: int) -> list[int]:
    """A service beside each worker, and one on each spare host."""
    return [*range(workers), *range(workers), *range(workers, workers + spare)]


@pytest.mark.parametrize("workers", [2, 3, 4, 8])
@pytest.mark.parametrize("spare", [0, 1, 2, 3, 8, 11])
def test_by_hosts__are_equations_1_and_2(workers: int, spare: int) -> None:
    beside, alone = closed_form_loads(workers=workers, servers=spare, model_bytes=1)
    loads = by_hosts(hosts_of(workers, spare), workers)
    assert loads == pytest.approx([beside] * workers + [alone] * spare)


def busiest(hosts: list[int], workers: int, loads: tuple[float, ...]) -> float:
    """Traffic of the busiest link in each direction."""
    parts: Counter[int] = Counter()
    for host, load in zip(hosts[workers:], loads, strict=True):
        parts[host] += load  # type: ignore[assignment]
    of_workers = Counter(hosts[:workers])
    return max(of_workers[host] + (workers - 2 * of_workers[host]) * parts[host] for host in set(hosts))


@pytest.mark.parametrize("workers", [1, 2, 3, 4])
@pytest.mark.parametrize("services", [1, 2, 3])
def test_by_hosts__add_up_and_are_no_worse_than_equal_ones_on_any_hosts(workers: int, services: int) -> None:
    gained = 0
    for hosts in product(range(4), repeat=workers + services):
        loads = by_hosts(hosts, workers)
        assert sum(loads) == pytest.approx(1)
        assert min(loads) >= 0
        equal = busiest(list(hosts), workers, (1 / services,) * services)
        found = busiest(list(hosts), workers, loads)
        assert found <= equal + 1e-9
        gained += found < equal - 1e-9
    assert (gained > 0) == (workers > 1 and services > 2)


def test_by_hosts__two_services_of_a_host_share_its_part() -> None:
    assert by_hosts([0, 1, 2, 0, 1, 2, 3, 3], 3) == pytest.approx([0.2, 0.2, 0.2, 0.2, 0.2])


def test_resolve__takes_the_argument_before_the_plan_and_this_before_the_hosts(tmp_path: Path) -> None:
    hosts = hosts_of(3, 1)
    environ = {"MLT_PLAN": str(plan_file(tmp_path, bandwidths=[10, 10, 10, 30]))}
    assert resolve([1, 1, 1, 1], hosts, 3, environ=environ) == (0.25,) * 4
    loads = resolve(None, hosts, 3, environ=environ)
    best = assign_loads(model_bytes=1, worker_bandwidths=[10e9] * 3, server_bandwidths=[30e9])
    assert loads == pytest.approx([*best.worker_loads, *best.server_loads])
    assert loads[3] > 0.4
    assert resolve(None, hosts, 3, environ={}) == (0.25,) * 4


@pytest.mark.parametrize("workers", [2, 3, 4, 6, 7, 8])
def test_by_default__leaves_out_services_beside_workers_where_as_many_are_on_spare_hosts(workers: int) -> None:
    for spare in range(workers + 3):
        hosts = hosts_of(workers, spare)
        equal = (1 / (workers + spare),) * (workers + spare)
        assert by_default(hosts, workers) == (by_hosts(hosts, workers) if spare >= workers else equal)
    assert by_default([0, 1, 2, 3], 2) == (0.5, 0.5)  # all on spare hosts


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ([1, 2], "loads has 2 numbers, and this job has 4 summation services"),
        ([0, 0, 0, 0], "one of them above 0"),
        ([1, -1, 1, 1], "numbers of 0 or more"),
        ([1, float("nan"), 1, 1], "numbers of 0 or more"),
        ([1, float("inf"), 1, 1], "numbers of 0 or more"),
        (["a", 1, 1, 1], "a number for each"),
        (3, "a number for each"),
    ],
)
def test_resolve__wrong_loads_are_named(given: object, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        resolve(given, hosts_of(3, 1), 3, environ={})  # type: ignore[arg-type]


def cluster_of(workers: int, bandwidths: list[float], jobs: int = 1) -> tuple[Cluster, list[Job]]:
    """Hosts with these bandwidths in Gbit/s around a switch, the first of which have a worker of each job."""
    names = [f"h{i}" for i in range(len(bandwidths))]
    hosts = "".join(
        f"  - {{name: {name}, bandwidth: {gbits} Gbit/s}}\n" for name, gbits in zip(names, bandwidths, strict=True)
    )
    links = "".join(
        f"  - {{a: {name}, b: s, bandwidth: {gbits} Gbit/s}}\n" for name, gbits in zip(names, bandwidths, strict=True)
    )
    planned = "".join(
        f"  - {{name: j{i}, model_size: 100 MB, workers: [{', '.join(names[:workers])}], "
        f"servers: [{', '.join(names[workers:])}]}}\n"
        for i in range(jobs)
    )
    cluster = parse_cluster(f"name: c\nhosts:\n{hosts}switches:\n  - {{name: s}}\nlinks:\n{links}jobs:\n{planned}")
    return cluster, list(cluster.jobs)


def plan_file(folder: Path, *, workers: int = 3, bandwidths: list[float], jobs: int = 1) -> Path:
    cluster, planned = cluster_of(workers, bandwidths, jobs)
    plan: Plan = new_plan(cluster)
    for job in planned:
        plan = plan.with_job(plan.job(job.name).model_copy(update={"assignment": plan_assignment(cluster, job)}))
    path = folder / "plan.json"
    path.write_text(dump_plan(plan), encoding="utf-8")
    return path


def planned(path: Path, hosts: list[int], workers: int, job: str = "default") -> tuple[float, ...]:
    return resolve(None, hosts, workers, job=job, environ={"MLT_PLAN": str(path)})


def test_plan__services_are_found_by_the_workers_hosts_then_by_rank(tmp_path: Path) -> None:
    path = plan_file(tmp_path, bandwidths=[10, 20, 20, 30])
    in_order = planned(path, hosts_of(3, 1), 3)
    assert in_order[0] < in_order[1]
    # The service on the spare host first, then those beside ranks 2, 0 and 1.
    assert planned(path, [0, 1, 2, 3, 2, 0, 1], 3) == (in_order[3], in_order[2], in_order[0], in_order[1])
    assert planned(path, [0] * 7, 3) == in_order  # all on one host: as in the plan


def test_plan__services_without_a_load_need_not_run(tmp_path: Path) -> None:
    path = plan_file(tmp_path, workers=2, bandwidths=[10, 10, 10, 10])  # k = n
    assert planned(path, [0, 1, 2, 3], 2) == (0.5, 0.5)
    assert planned(path, [0, 1, 0, 1, 2, 3], 2) == (0, 0, 0.5, 0.5)


def test_plan__that_does_not_fit_the_job_is_named(tmp_path: Path) -> None:
    path = plan_file(tmp_path, bandwidths=[10, 10, 10, 20])
    with pytest.raises(ConfigError, match=r"plan\.json: the plan of job 'j0' is for 3 workers, and this job has 2"):
        planned(path, [0, 1, 0, 1], 2)
    with pytest.raises(ConfigError, match="has 4 summation services, and this job has 2: start as many"):
        planned(path, [0, 1, 2, 3, 4], 3)
    with pytest.raises(ConfigError, match=r"beside rank 1 \(on 'h1'\), and no service of this job is on the host"):
        planned(path, [0, 1, 2, 0, 4, 2, 3], 3)


def check(path: Path, workers: int, services: int, *, rank: int = 0) -> None:
    place = {"rank": rank, "world_size": workers, "services": services, "job": "default"}
    check_plan(**place, environ={"MLT_PLAN": str(path)})


def test_check_plan__finds_before_the_job_starts_what_needs_no_hosts(tmp_path: Path) -> None:
    path = plan_file(tmp_path, bandwidths=[10, 10, 10, 20])
    check(path, 3, 4)
    with pytest.raises(ConfigError, match=r"plan\.json: the plan of job 'j0' is for 3 workers, and this job has 2"):
        check(path, 2, 2)
    with pytest.raises(ConfigError, match="has 4 summation services, and this job has 2: start as many"):
        check(path, 3, 2)
    with pytest.raises(ConfigError, match=r"MLT_PLAN: .*none\.json.* cannot be read"):
        check(tmp_path / "none.json", 3, 4)
    check(tmp_path / "none.json", 3, 4, rank=3)  # a service does not read it


def test_check_plan__without_services_has_no_effect_and_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _warn_of_no_services.cache_clear()
    with caplog.at_level(logging.WARNING, "mlt"):
        for _ in range(2):
            check(tmp_path / "none.json", 3, 0)
    assert len(caplog.records) == 1
    assert_names(caplog.text, "MLT_PLAN", "no effect", "no summation services")


def test_plan__of_several_jobs_needs_the_name_of_this_one(tmp_path: Path) -> None:
    path = plan_file(tmp_path, bandwidths=[10, 10, 10, 30], jobs=2)
    assert planned(path, hosts_of(3, 1), 3, "j1") == pytest.approx(planned(path, hosts_of(3, 1), 3, "j0"))
    with pytest.raises(ConfigError, match="the jobs 'j0', 'j1', and this one is 'default': set MLT_JOB"):
        planned(path, hosts_of(3, 1), 3)


def test_plan__that_is_none_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"MLT_PLAN: .*none\.json.* cannot be read"):
        planned(tmp_path / "none.json", hosts_of(3, 1), 3)
    empty = tmp_path / "plan.json"
    empty.write_text(dump_plan(new_plan(cluster_of(2, [1, 1])[0])), encoding="utf-8")
    with pytest.raises(ConfigError, match="assigns no loads to summation services"):
        planned(empty, hosts_of(3, 1), 3)
