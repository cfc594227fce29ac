"""BytePS equations 1 to 7 and the linear programme that generalises them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlt.planners.byteps.load_assignment import assign_loads, closed_form_loads, communication_time, plan_assignment
from mlt.planners.cluster import Cluster, Host, Job
from studies.byteps import gain_over_all_reduce, gain_over_parameter_server

BANDWIDTHS = st.floats(1e9, 4e11)


def waterfill_time(model_bytes: float, workers: list[float], servers: list[float]) -> float:
    """Independent solution: bisect the time at which the services together can sum the model."""
    n, bits = len(workers), model_bytes * 8
    floor = bits / min(workers)
    if n <= 2:
        return floor

    def room(time: float) -> float:
        return sum((time * b - bits) / (n - 2) for b in workers) + sum(time * b / n for b in servers)

    low, high = floor, 2 * floor
    while room(high) < bits:
        high *= 2
    if room(low) >= bits:
        return low
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (low, middle) if room(middle) >= bits else (middle, high)
    return high


def test_gains__paper_example() -> None:
    result = assign_loads(model_bytes=1e9, worker_bandwidths=[1e11] * 32, server_bandwidths=[1e11] * 16)
    assert math.floor(gain_over_all_reduce(result) * 100) / 100 == 1.46  # type: ignore[operator]
    assert round(gain_over_parameter_server(result), 2) == 1.52  # type: ignore[arg-type]


@pytest.mark.parametrize(("n", "k"), [(n, k) for n in (2, 3, 8, 32, 257) for k in (1, 2, 5, 8, 32) if k <= n])
def test_equations__agree_with_each_other(n: int, k: int) -> None:
    size, rate = 1e9, 1e11
    d = n * n + k * n - 2 * k
    result = assign_loads(model_bytes=size, worker_bandwidths=[rate] * n, server_bandwidths=[rate] * k)
    assert result.worker_loads[0] == pytest.approx((n - k) / d * size)
    assert result.server_loads[0] == pytest.approx(2 * (n - 1) / d * size)
    assert result.worker_loads.sum() + result.server_loads.sum() == pytest.approx(size)
    assert result.time == pytest.approx(2 * n * (n - 1) * size * 8 / (d * rate))  # equation 6
    assert gain_over_all_reduce(result) == pytest.approx(d / n**2)  # equation 7
    assert gain_over_parameter_server(result) == pytest.approx(d / (2 * k * (n - 1)))


def test_closed_form__fallbacks() -> None:
    assert closed_form_loads(workers=4, servers=0, model_bytes=100) == (25.0, 0.0)  # co-located servers
    assert closed_form_loads(workers=4, servers=8, model_bytes=96) == (0.0, 12.0)  # plain parameter server
    assert closed_form_loads(workers=1, servers=3, model_bytes=5) == (5, 0.0)
    with pytest.raises(ValueError, match="expected at least 1"):
        closed_form_loads(workers=0, servers=1, model_bytes=1)


def test_assign_loads__without_servers_it_is_all_reduce() -> None:
    result = assign_loads(model_bytes=1e9, worker_bandwidths=[1e10] * 8)
    assert gain_over_all_reduce(result) == pytest.approx(1.0)
    assert gain_over_parameter_server(result) is None


def test_assign_loads__more_servers_than_workers_gain_nothing_more() -> None:
    equal = assign_loads(model_bytes=1e9, worker_bandwidths=[1e10] * 4, server_bandwidths=[1e10] * 4)
    more = assign_loads(model_bytes=1e9, worker_bandwidths=[1e10] * 4, server_bandwidths=[1e10] * 9)
    assert more.time == pytest.approx(equal.time)
    assert gain_over_parameter_server(more) == pytest.approx(1.0)


def test_assign_loads__a_lone_worker_sends_nothing() -> None:
    result = assign_loads(model_bytes=1e9, worker_bandwidths=[1e10], server_bandwidths=[1e9])
    assert result.time == 0
    assert gain_over_all_reduce(result) is None


@pytest.mark.parametrize(("size", "workers"), [(0, [1.0]), (1, []), (1, [0.0])])
def test_assign_loads__rejects_bad_input(size: float, workers: list[float]) -> None:
    with pytest.raises(ValueError, match="expected"):
        assign_loads(model_bytes=size, worker_bandwidths=workers)


@settings(max_examples=80, deadline=None)
@given(workers=st.lists(BANDWIDTHS, min_size=1, max_size=12), servers=st.lists(BANDWIDTHS, max_size=12))
def test_linear_programme__matches_waterfilling(workers: list[float], servers: list[float]) -> None:
    result = assign_loads(model_bytes=1e9, worker_bandwidths=workers, server_bandwidths=servers)
    loads = [*result.worker_loads, *result.server_loads]
    assert min(loads) >= 0
    assert math.fsum(loads) == pytest.approx(1e9)
    if len(workers) > 1:
        assert result.time == pytest.approx(waterfill_time(1e9, workers, servers), rel=1e-6)


@settings(max_examples=40, deadline=None)
@given(n=st.integers(2, 12), k=st.integers(0, 12))
def test_linear_programme__meets_the_closed_form(n: int, k: int) -> None:
    rate = 1e11
    near = [rate] * (n - 1) + [rate * (1 + 1e-12)]  # unequal enough to take the programme
    programme = assign_loads(model_bytes=1e9, worker_bandwidths=near, server_bandwidths=[rate] * k)
    closed = assign_loads(model_bytes=1e9, worker_bandwidths=[rate] * n, server_bandwidths=[rate] * k)
    assert (programme.method, closed.method) == ("linear-programme", "closed-form")
    assert programme.time == pytest.approx(closed.time, rel=1e-6)


@settings(max_examples=60, deadline=None)
@given(
    workers=st.lists(BANDWIDTHS, min_size=2, max_size=8),
    servers=st.lists(BANDWIDTHS, max_size=8),
    which=st.integers(0, 15),
    factor=st.floats(1.0, 10.0),
)
def test_assign_loads__more_bandwidth_is_never_slower(
    workers: list[float], servers: list[float], which: int, factor: float
) -> None:
    before = assign_loads(model_bytes=1e9, worker_bandwidths=workers, server_bandwidths=servers)
    faster = [*workers, *servers]
    faster[which % len(faster)] *= factor
    after = assign_loads(
        model_bytes=1e9, worker_bandwidths=faster[: len(workers)], server_bandwidths=faster[len(workers) :]
    )
    assert after.time <= before.time * (1 + 1e-6)


@settings(max_examples=40, deadline=None)
@given(workers=st.lists(BANDWIDTHS, min_size=3, max_size=8), servers=st.lists(BANDWIDTHS, min_size=1, max_size=4))
def test_assign_loads__beats_both_baselines(workers: list[float], servers: list[float]) -> None:
    result = assign_loads(model_bytes=1e9, worker_bandwidths=workers, server_bandwidths=servers)
    assert result.time <= result.time_all_reduce * (1 + 1e-6)
    assert result.time <= result.time_parameter_server * (1 + 1e-6)  # type: ignore[operator]


def test_plan_assignment__loads_ranges_and_time_agree() -> None:
    hosts = tuple(Host(name=f"h{i}", bandwidth=10e9 * (1 + i % 3)) for i in range(9))
    job = Job(name="j", workers=tuple(f"h{i}" for i in range(6)), servers=("h6", "h7", "h8"), model_size=97e6)
    section = plan_assignment(Cluster(hosts=hosts, jobs=(job,)), job)
    assert section.method == "linear-programme"
    assert [service.colocated for service in section.services] == [True] * 6 + [False] * 3
    for service in section.services:
        part = (service.hash_end - service.hash_begin) / section.hash_space
        assert part == pytest.approx(service.load_bytes / 97e6, abs=2 / section.hash_space)
    loads = [service.load_bytes for service in section.services]
    assert section.time == communication_time(
        model_bytes=97e6,
        worker_bandwidths=[host.bandwidth for host in hosts[:6]],
        server_bandwidths=[host.bandwidth for host in hosts[6:]],
        worker_loads=loads[:6],
        server_loads=loads[6:],
    )
