"""``plan_auto``: ranks, keeps the best, says why."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlt.planners.auto.ranking import plan_auto
from mlt.planners.cluster import Cluster, Host, Job, Link, Switch, dump_cluster, parse_cluster
from mlt.planners.plan import InfeasibleError, dump_plan, parse_plan


def hosts_only(workers: list[float], servers: list[float]) -> tuple[Cluster, Job]:
    hosts = [Host(name=f"w{i}", bandwidth=rate, cpu_cores=8) for i, rate in enumerate(workers)]
    hosts += [Host(name=f"ps{i}", bandwidth=rate) for i, rate in enumerate(servers)]
    names = tuple(host.name for host in hosts)
    job = Job(name="j", workers=names[: len(workers)], servers=names[len(workers) :], model_size=97e6)
    return Cluster(hosts=tuple(hosts), jobs=(job,)), job


def test_plan_auto__equal_bandwidth_prefers_byteps() -> None:
    result = plan_auto(*hosts_only([100e9] * 32, [100e9] * 16))
    assert result.ranked[0].name == "byteps"
    assert result.plan.job("j").assignment is not None
    gain = {a.name: a.time / result.ranked[0].time for a in result.ranked}
    assert gain["all-reduce"] == pytest.approx(1.46875)
    assert gain["parameter server"] == pytest.approx(1.516, abs=1e-3)


def test_plan_auto__unequal_bandwidth_prefers_aleph() -> None:
    # Table 1's hosts with more workers: NICs of the fast ones are free, the server's is not.
    result = plan_auto(*hosts_only([10e9] * 30 + [90e9] * 5, [100e9]))
    assert result.ranked[0].name.startswith(("aleph", "byteps"))
    assert result.ranked[0].time < min(a.time for a in result.ranked if a.name in ("all-reduce", "parameter server"))
    assert "times faster than" in result.reason or "tie" in result.reason


def test_plan_auto__plan_round_trips_and_repeats() -> None:
    cluster, job = hosts_only([10e9, 20e9, 30e9, 10e9], [20e9])
    first, second = (plan_auto(cluster, job, seed=4).plan for _ in range(2))
    assert dump_plan(first) == dump_plan(second)
    assert parse_plan(dump_plan(first)) == first
    assert first.mismatches(parse_cluster(dump_cluster(cluster))) == []
    times = [estimate.iteration_time for estimate in first.job("j").estimates]
    assert times == sorted(times)


def test_plan_auto__names_alternatives_not_tried() -> None:
    result = plan_auto(*hosts_only([10e9] * 4, []))
    assert any("no servers" in skipped.reason for skipped in result.skipped)


def test_plan_auto__disconnected_worker_names_connectivity() -> None:
    cluster = Cluster(
        hosts=tuple(Host(name=f"h{i}", bandwidth=1e9) for i in range(3)),
        switches=(Switch(name="s"),),
        links=(Link(a="h0", b="s", bandwidth=1e9), Link(a="h2", b="s", bandwidth=1e9)),
        jobs=(Job(name="j", workers=("h0", "h1"), servers=("h2",), model_size=1e6),),
    )
    with pytest.raises(InfeasibleError, match="connectivity: no path"):
        plan_auto(cluster, cluster.jobs[0])


@settings(max_examples=20, deadline=None)
@given(
    workers=st.lists(st.floats(1e9, 50e9), min_size=2, max_size=10), which=st.integers(0, 10), factor=st.floats(1, 5)
)
def test_plan_auto__more_bandwidth_never_plans_slower(workers: list[float], which: int, factor: float) -> None:
    before = plan_auto(*hosts_only(workers, [20e9])).ranked[0].time
    servers = [20e9]
    if which % (len(workers) + 1) == len(workers):
        servers[0] *= factor
    else:
        workers[which % (len(workers) + 1)] *= factor
    assert plan_auto(*hosts_only(workers, servers)).ranked[0].time <= before * (1 + 1e-6)
