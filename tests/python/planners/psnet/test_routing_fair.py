from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlt.planners.psnet.jobs import PlacedJob
from mlt.planners.psnet.psnet import Module, PSNet, build_psnet
from mlt.planners.psnet.routing import RoutePlan, circuits_of, route_jobs
from mlt.planners.psnet.verify import Verdict, verify_routes
from mlt.planners.psnet.wiring import Wiring

MODULE = Module(ecs_ports=12, tor_downlinks=4, tor_uplinks=5)
#: Two separate pairs of modules, three parallel links each.
PAIRS = PSNet(modules=(MODULE,) * 4, wiring=Wiring(4, 3, ((1, 2),) * 3 + ((3, 4),) * 3))


def crossing(name: str, source: int, target: int, *, size: float = 1e8, first: int = 0, workers: int = 6) -> PlacedJob:
    return PlacedJob(
        name=name,
        size_bytes=size,
        workers={source: tuple(range(first, first + workers))},
        servers={target: (first % MODULE.server_count,)},
    )


def checked(network: PSNet, jobs: list[PlacedJob], plan: RoutePlan) -> Verdict:
    circuits = {mid: made.circuits for mid, made in circuits_of(network, jobs, plan).items()}
    return verify_routes(network, jobs, plan, circuits)


def test_settle__a_job_that_shares_nothing_is_as_fast_as_alone() -> None:
    small = crossing("small", 3, 4, size=1e7)
    jobs = [crossing("huge", 1, 2, size=5e8), small]
    together = checked(PAIRS, jobs, route_jobs(PAIRS, jobs)).job_seconds
    alone = route_jobs(PAIRS, [small]).transfer_seconds
    assert together["small"] == pytest.approx(alone, rel=1e-5)
    assert together["huge"] == pytest.approx(50 * alone, rel=1e-5)


def test_settle__three_jobs_of_three_sizes_each_get_their_own_optimum() -> None:
    network = PSNet(modules=(MODULE,) * 6, wiring=Wiring(6, 3, ((1, 2),) * 3 + ((3, 4),) * 3 + ((5, 6),) * 3))
    jobs = [crossing(f"job-{n}", 2 * n + 1, 2 * n + 2, size=10.0**8 / 4**n) for n in range(3)]
    seconds = checked(network, jobs, route_jobs(network, jobs)).job_seconds
    for job in jobs:
        assert seconds[job.name] == pytest.approx(route_jobs(network, [job]).transfer_seconds, rel=1e-5)


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 30), data=st.data())
def test_settle__never_costs_the_slowest_job_anything(seed: int, data: st.DataObject) -> None:
    network = build_psnet(MODULE, modules=8, seed=seed)
    ends = data.draw(st.permutations(range(1, 9)))
    sizes = data.draw(st.lists(st.sampled_from([1e7, 1e8, 5e8]), min_size=2, max_size=4))
    jobs = [crossing(f"job-{n}", ends[2 * n], ends[2 * n + 1], size=size) for n, size in enumerate(sizes)]
    plan = route_jobs(network, jobs)
    verdict = checked(network, jobs, plan)
    assert max(verdict.job_seconds.values()) == pytest.approx(plan.transfer_seconds, rel=1e-6)
    assert plan.gap < 1e-6
    assert route_jobs(network, jobs) == plan
