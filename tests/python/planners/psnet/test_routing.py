from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from checks import names
from hypothesis import given, settings
from hypothesis import strategies as st

from mlt.planners.psnet.checks import TopologyError
from mlt.planners.psnet.circuits import Circuits
from mlt.planners.psnet.jobs import PlacedJob
from mlt.planners.psnet.paths import disjoint_paths, shortest_paths
from mlt.planners.psnet.psnet import Module, PSNet, build_psnet
from mlt.planners.psnet.routing import RoutePlan, circuits_of, demands, route_jobs
from mlt.planners.psnet.verify import Verdict, verify_routes
from mlt.planners.psnet.wiring import Wiring
from studies.psnet.any_path import any_path_seconds
from studies.psnet.bct import JobProfile, two_module_time

RATE = 1e10
MODULE = Module(ecs_ports=12, tor_downlinks=4, tor_uplinks=5, worker_bits_per_second=RATE)


def checked(network: PSNet, jobs: list[PlacedJob], plan: RoutePlan) -> Verdict:
    circuits = {mid: made.circuits for mid, made in circuits_of(network, jobs, plan).items()}
    return verify_routes(network, jobs, plan, circuits)


@st.composite
def placed_jobs(draw: st.DrawFn, modules: int) -> list[PlacedJob]:
    workers = {mid: list(range(MODULE.worker_count)) for mid in range(1, modules + 1)}
    servers = {mid: list(range(MODULE.server_count)) for mid in range(1, modules + 1)}
    jobs = []
    for n in range(draw(st.integers(1, 3))):
        at = draw(st.lists(st.integers(1, modules), min_size=1, max_size=3, unique=True))
        mine: list[dict[int, tuple[int, ...]]] = []
        for free, maximum in ((workers, 5), (servers, 2)):
            taken = {}
            for mid in at:
                count = min(draw(st.integers(0, maximum)), len(free[mid]))
                taken[mid] = tuple(free[mid].pop(0) for _ in range(count))
            mine.append(taken)
        if any(mine[0].values()) and any(mine[1].values()):
            size = draw(st.sampled_from([1e7, 1e8, 5e8]))
            jobs.append(PlacedJob(name=f"job-{n}", size_bytes=size, workers=mine[0], servers=mine[1]))
    return jobs


@settings(deadline=None, max_examples=60)
@given(data=st.data(), modules=st.integers(2, 8), seed=st.integers(0, 50))
def test_route_jobs__is_feasible_and_its_time_is_what_the_links_need(
    data: st.DataObject, modules: int, seed: int
) -> None:
    network = build_psnet(MODULE, modules=modules, seed=seed)
    jobs = data.draw(placed_jobs(modules))
    if not jobs:
        return
    plan = route_jobs(network, jobs)
    verdict = checked(network, jobs, plan)
    assert verdict.seconds == pytest.approx(plan.transfer_seconds, rel=1e-6)
    assert plan.bound_seconds <= plan.transfer_seconds
    assert plan.gap < 1e-6
    assert max(verdict.job_seconds.values()) == verdict.seconds
    assert route_jobs(network, jobs) == plan


@settings(deadline=None, max_examples=30)
@given(
    data=st.data(), seed=st.integers(0, 50), faster=st.floats(1, 4), which=st.sampled_from(["worker", "ratio", "inter"])
)
def test_route_jobs__more_bandwidth_is_never_slower(data: st.DataObject, seed: int, faster: float, which: str) -> None:
    network = build_psnet(MODULE, modules=5, seed=seed)
    jobs = data.draw(placed_jobs(5))
    if not jobs:
        return
    if which == "inter":
        better = replace(network, inter_bits_per_second=network.inter_rate * faster)
    elif which == "ratio":
        better = replace(network, modules=(replace(MODULE, server_ratio=faster),) * 5)
    else:
        quick = replace(MODULE, worker_bits_per_second=RATE * faster, server_ratio=1 / faster)
        better = replace(network, modules=(quick,) * 5)
    before, after = route_jobs(network, jobs), route_jobs(better, jobs)
    assert after.transfer_seconds <= before.transfer_seconds * (1 + 1e-6)


@pytest.mark.parametrize(("first_workers", "first_servers"), [(6, 2), (9, 3), (12, 0), (3, 4), (6, 1)])
def test_route_jobs__one_job_in_two_modules_is_equation_6(first_workers: int, first_servers: int) -> None:
    network = build_psnet(MODULE, modules=2)
    job = split_job(first_workers, first_servers)
    plan = route_jobs(network, [job])
    model = two_module_time(
        JobProfile(workers=12, servers=4, size_bytes=1e8),
        first_workers=first_workers,
        first_servers=first_servers,
        tors=3,
        worker_bits_per_second=RATE,
        server_ratio=1.0,
        latency_seconds=0.0,
    )
    assert plan.transfer_seconds == pytest.approx(model.seconds)
    assert {len(path) for paths in plan.paths.values() for path in paths} == {2}  # modules of a path: one link


def test_route_jobs__workers_that_r_does_not_divide_take_longer_than_equation_6() -> None:
    # 7 workers on 3 ToRs, 3 remote servers: the ToR with 3 workers has 9 flows on its uplink, not 7.
    plan = route_jobs(build_psnet(MODULE, modules=2), [split_job(5, 3)])
    assert plan.transfer_seconds == pytest.approx(9 * 25e6 * 8 / RATE)
    assert plan.gap < 1e-6


def split_job(first_workers: int, first_servers: int) -> PlacedJob:
    return PlacedJob(
        name="job",
        size_bytes=1e8,
        workers={1: tuple(range(first_workers)), 2: tuple(range(12 - first_workers))},
        servers={1: tuple(range(first_servers)), 2: tuple(range(4 - first_servers))},
    )


def test_route_jobs__lost_links_slow_it_down_and_all_lost_is_an_error() -> None:
    network = build_psnet(MODULE, modules=2)
    job = split_job(12, 0)
    left = [replace(network, wiring=Wiring(2, 3, ((1, 2),) * links)) for links in (3, 2, 1, 0)]
    times = [route_jobs(some, [job]).transfer_seconds for some in left[:3]]
    assert times[1] == pytest.approx(times[0] * 3 / 2)
    assert times[2] == pytest.approx(times[0] * 3)
    with pytest.raises(TopologyError, match="module 1 to module 2"):
        route_jobs(left[3], [job])


@settings(deadline=None, max_examples=60)
@given(modules=st.integers(2, 16), seed=st.integers(0, 99))
def test_disjoint_paths__r_of_them_share_no_link(modules: int, seed: int) -> None:
    wiring = build_psnet(Module(ecs_ports=16, tor_downlinks=4, tor_uplinks=3), modules=modules, seed=seed).wiring
    trunks = wiring.trunks()
    for target in range(2, modules + 1):
        paths = disjoint_paths(trunks, 1, target)
        assert sum(paths.values()) == 4
        used: dict[tuple[int, int], int] = {}
        for path, width in paths.items():
            assert (path[0], path[-1]) == (1, target)
            for a, b in pairwise(path):
                used[min(a, b), max(a, b)] = used.get((min(a, b), max(a, b)), 0) + width
        assert all(count <= trunks[pair] for pair, count in used.items())


@settings(deadline=None, max_examples=30)
@given(data=st.data(), modules=st.integers(3, 8), seed=st.integers(0, 50))
def test_any_path_seconds__bounds_the_inter_module_time_from_below(
    data: st.DataObject, modules: int, seed: int
) -> None:
    network = build_psnet(MODULE, modules=modules, seed=seed)
    jobs = data.draw(placed_jobs(modules))
    crossing = demands(jobs)
    if not crossing:
        return
    plan = route_jobs(network, jobs)
    inter = [
        8 * amount / network.inter_rate / network.wiring.trunks()[min(a, b), max(a, b)]
        for (a, b), amount in _link_bytes(plan, crossing).items()
    ]
    bound = any_path_seconds(network.wiring.trunks(), crossing, link_bits_per_second=network.inter_rate)
    assert bound <= max(inter) * (1 + 1e-6)


@settings(deadline=None, max_examples=15)
@given(data=st.data(), seed=st.integers(0, 50))
def test_route_jobs__extra_paths_are_never_slower(data: st.DataObject, seed: int) -> None:
    network = build_psnet(MODULE, modules=8, seed=seed)
    jobs = data.draw(placed_jobs(8))
    if not jobs:
        return
    few, many = route_jobs(network, jobs), route_jobs(network, jobs, extra_paths=8)
    assert many.transfer_seconds <= few.transfer_seconds * (1 + 1e-6)
    assert checked(network, jobs, many).seconds == pytest.approx(many.transfer_seconds, rel=1e-6)


def test_shortest_paths__come_in_order_of_length() -> None:
    trunks = build_psnet(MODULE, modules=8, seed=1).wiring.trunks()
    paths = shortest_paths(trunks, 1, 8, count=6)
    assert len(set(paths)) == 6
    assert [len(path) for path in paths] == sorted(len(path) for path in paths)
    assert all((path[0], path[-1]) == (1, 8) and len(set(path)) == len(path) for path in paths)
    assert shortest_paths({(1, 2): 1}, 1, 2, count=5) == [(1, 2)]


def _link_bytes(plan: RoutePlan, crossing: dict[tuple[int, int], float]) -> dict[tuple[int, int], float]:
    loads: dict[tuple[int, int], float] = {}
    for pair, amount in crossing.items():
        for path, share in plan.paths[pair].items():
            for link in pairwise(path):
                loads[link] = loads.get(link, 0.0) + amount * share
    return loads


def test_verify_routes__catches_a_plan_that_lies() -> None:
    network = build_psnet(MODULE, modules=4, seed=1)
    job = PlacedJob(name="job", size_bytes=1e8, workers={1: (0, 1, 2)}, servers={3: (0,)})
    plan = route_jobs(network, [job])
    circuits = {mid: made.circuits for mid, made in circuits_of(network, [job], plan).items()}
    for lie, message in (
        ({"transfer_seconds": plan.transfer_seconds / 2}, "the plan says"),
        ({"entry": {("job", 3): (0.5, 0.0, 0.0)}}, "carry 0.5"),
        ({"paths": {}}, "has no route between them"),
        ({"paths": {(1, 3): {(1, 1, 3): 1.0}}}, "which is not a link"),
    ):
        with pytest.raises(TopologyError, match=message):
            verify_routes(network, [job], replace(plan, **lie), circuits)  # type: ignore[arg-type]
    beyond = list(circuits[1].of)
    beyond[0] = (3, 0)
    with pytest.raises(TopologyError, match=names("(3, 0)")):
        verify_routes(network, [job], plan, {**circuits, 1: Circuits(tuple(beyond))})


def test_route_jobs__awkward_sizes_are_still_proven_optimal() -> None:
    # 3 does not divide any of these; the relaxation alone would leave a gap of a third.
    network = build_psnet(MODULE, modules=6, seed=2)
    jobs = [
        PlacedJob(name=f"job-{n}", size_bytes=1e8, workers={n: (0, 1, 2, 3), n + 1: (4, 5)}, servers={n: (0,)})
        for n in range(1, 6)
    ]
    plan = route_jobs(network, jobs)
    assert plan.gap < 1e-6
    checked(network, jobs, plan)
