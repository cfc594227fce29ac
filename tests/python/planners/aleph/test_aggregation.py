"""The plan section ``aggregation`` from a cluster file."""

from __future__ import annotations

import numpy as np
import pytest
from checks import names
from hypothesis import given, settings
from hypothesis import strategies as st

from mlt.planners.aleph.aggregation import METHODS, plan_aggregation
from mlt.planners.cluster import Cluster, Host, Job
from mlt.planners.plan import InfeasibleError


def cluster_of(workers: list[float], servers: list[float], *, size: float = 97e6) -> tuple[Cluster, Job]:
    hosts = [Host(name=f"w{i}", bandwidth=rate, cpu_cores=8) for i, rate in enumerate(workers)]
    hosts += [Host(name=f"ps{i}", bandwidth=rate) for i, rate in enumerate(servers)]
    names = [host.name for host in hosts]
    job = Job(name="j", workers=tuple(names[: len(workers)]), servers=tuple(names[len(workers) :]), model_size=size)
    return Cluster(hosts=tuple(hosts), jobs=(job,)), job


def test_plan_aggregation__motivating_example() -> None:
    section = plan_aggregation(*cluster_of([10e9, 10e9, 10e9, 30e9], [20e9], size=4.2e9 / 8)).section
    assert section.time_parameter_server == pytest.approx(0.84)
    assert section.time_all_reduce == pytest.approx(0.63)
    assert section.time == pytest.approx(0.42)
    assert [(c.aggregator, len(c.members)) for c in section.clusters] == [("w3", 2)]
    assert len(section.direct) == 1


def test_plan_aggregation__testbed_example() -> None:
    section = plan_aggregation(*cluster_of([30e9, 20e9, 20e9] + [10e9] * 5, [40e9]), method="m-wcha").section
    assert {c.aggregator: len(c.members) for c in section.clusters} == {"w0": 2, "w1": 1, "w2": 1}
    assert section.rate == pytest.approx(10e9)


def test_plan_aggregation__splits_over_servers_by_bandwidth() -> None:
    section = plan_aggregation(*cluster_of([10e9] * 4, [10e9, 30e9])).section
    assert [(share.server, share.share) for share in section.shares] == [("ps0", 0.25), ("ps1", 0.75)]


@pytest.mark.parametrize("method", METHODS)
def test_plan_aggregation__every_method_places_every_worker_once(method: str) -> None:
    rng = np.random.default_rng(4)
    cluster, job = cluster_of((rng.uniform(1, 9, 30) * 1e9).tolist(), [10e9])
    section = plan_aggregation(cluster, job, method=method).section  # type: ignore[arg-type]
    placed = [name for c in section.clusters for name in (c.aggregator, *c.members)] + list(section.direct)
    assert sorted(placed) == sorted(job.workers)


def test_plan_aggregation__names_the_bottleneck_and_ranks_alternatives() -> None:
    result = plan_aggregation(*cluster_of([10e9, 10e9, 10e9, 30e9], [20e9]))
    assert "servers' bandwidth" in result.binding
    times = [estimate.iteration_time for estimate in result.estimates]
    assert times == sorted(times)
    assert {estimate.name for estimate in result.estimates} == {"m-wcha", "fastest", "greedy", "direct"}


def test_plan_aggregation__without_a_server_names_the_binding_constraint() -> None:
    with pytest.raises(InfeasibleError, match=names("no server", "'servers'")):
        plan_aggregation(*cluster_of([10e9] * 3, []))


def test_plan_aggregation__rejects_an_unknown_method() -> None:
    with pytest.raises(ValueError, match="expected one of best"):
        plan_aggregation(*cluster_of([1e9], [1e9]), method="magic")  # type: ignore[arg-type]


@settings(max_examples=40, deadline=None)
@given(
    workers=st.lists(st.floats(1e9, 50e9), min_size=1, max_size=15),
    which=st.integers(0, 15),
    factor=st.floats(1, 5),
    seed=st.integers(0, 99),
)
def test_plan_aggregation__more_bandwidth_never_plans_slower(
    workers: list[float], which: int, factor: float, seed: int
) -> None:
    before = plan_aggregation(*cluster_of(workers, [20e9]), seed=seed)
    assert before.section == plan_aggregation(*cluster_of(workers, [20e9]), seed=seed).section
    servers = [20e9]
    if which % (len(workers) + 1) == len(workers):
        servers[0] *= factor
    else:
        workers[which % (len(workers) + 1)] *= factor
    after = plan_aggregation(*cluster_of(workers, servers), seed=seed)
    assert after.section.time <= before.section.time * (1 + 1e-8)
