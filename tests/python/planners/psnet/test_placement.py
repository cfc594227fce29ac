from __future__ import annotations

from dataclasses import replace
from itertools import product

import networkx as nx
import pytest
from checks import names
from hypothesis import given, settings
from hypothesis import strategies as st

from mlt.planners.psnet.checks import TopologyError
from mlt.planners.psnet.jobs import JobRequest, check_jobs
from mlt.planners.psnet.placement import best_split, inter_load, place_jobs
from mlt.planners.psnet.psnet import Module, build_psnet
from mlt.planners.psnet.routing import route_jobs

MODULE = Module(ecs_ports=12, tor_downlinks=4, tor_uplinks=4)  # 12 workers, 3 servers, R = 3


@st.composite
def request_lists(draw: st.DrawFn, workers: int = 60, servers: int = 15) -> list[JobRequest]:
    out: list[JobRequest] = []
    while workers and servers and len(out) < 8 and draw(st.booleans() if len(out) > 1 else st.just(True)):
        w, p = draw(st.integers(1, min(workers, 20))), draw(st.integers(1, min(servers, 5)))
        size = draw(st.sampled_from([1e7, 97e6, 528e6]))
        out.append(JobRequest(name=f"job-{len(out)}", workers=w, servers=p, size_bytes=size))
        workers, servers = workers - w, servers - p
    return out


@settings(deadline=None)
@given(requests=request_lists(), seed=st.integers(0, 20))
def test_place_jobs__gives_every_job_its_hosts_and_none_twice(requests: list[JobRequest], seed: int) -> None:
    network = build_psnet(MODULE, modules=5, seed=seed)
    result = place_jobs(network, requests)
    check_jobs(network, result.jobs)
    for request, job in zip(requests, result.jobs, strict=True):
        assert (job.name, job.worker_count, job.server_count) == (request.name, request.workers, request.servers)
        assert (len(job.modules) == 1) == (request.name in result.whole)
    assert place_jobs(network, requests) == result


@settings(deadline=None, max_examples=40)
@given(requests=request_lists(workers=24, servers=6))
def test_place_jobs__keeps_as_many_bytes_inside_modules_as_brute_force(requests: list[JobRequest]) -> None:
    network = build_psnet(MODULE, modules=2)
    requests = requests[:5]
    result = place_jobs(network, requests)
    maximum = 0.0
    for homes in product((0, 1, 2), repeat=len(requests)):
        fits = all(
            sum(r.workers for r, h in zip(requests, homes, strict=True) if h == mid) <= 12
            and sum(r.servers for r, h in zip(requests, homes, strict=True) if h == mid) <= 3
            for mid in (1, 2)
        )
        if fits:
            maximum = max(maximum, sum(r.workers * r.size_bytes for r, h in zip(requests, homes, strict=True) if h))
    assert result.proven
    assert result.kept_bytes == pytest.approx(maximum)


@settings(deadline=None, max_examples=60)
@given(workers=st.integers(2, 20), servers=st.integers(1, 6), data=st.data())
def test_best_split__over_two_modules_is_the_best_of_all(workers: int, servers: int, data: st.DataObject) -> None:
    request = JobRequest(name="job", workers=workers, servers=servers, size_bytes=1e8)
    room = {1: (12, 3), 2: (data.draw(st.integers(8, 12)), 3)}
    split = best_split(nx.path_graph([1, 2]), request, room)
    loads = [
        inter_load(request, {1: (w, p), 2: (workers - w, servers - p)})
        for w in range(workers + 1)
        for p in range(servers + 1)
        if w <= room[1][0] and workers - w <= room[2][0] and p <= 3 and servers - p <= 3
    ]
    assert inter_load(request, split) == min(loads)


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 20), data=st.data())
def test_best_split__uses_adjacent_modules_whenever_two_of_them_have_capacity(seed: int, data: st.DataObject) -> None:
    graph = build_psnet(MODULE, modules=6, seed=seed).wiring.graph()
    room = {mid: (data.draw(st.integers(0, 12)), data.draw(st.integers(0, 3))) for mid in range(1, 7)}
    request = JobRequest(name="job", workers=10, servers=3, size_bytes=1e8)
    if sum(w for w, _ in room.values()) < 10 or sum(p for _, p in room.values()) < 3:
        return
    split = best_split(graph, request, room)
    assert (sum(w for w, _ in split.values()), sum(p for _, p in split.values())) == (10, 3)
    assert all(w <= room[mid][0] and p <= room[mid][1] for mid, (w, p) in split.items())
    fits = [e for e in graph.edges() if all(room[e[0]][i] + room[e[1]][i] >= need for i, need in enumerate((10, 3)))]
    if fits:
        assert len(split) == 2
        assert graph.has_edge(*split)


def test_place_jobs__a_job_too_large_for_a_module_goes_to_adjacent_ones() -> None:
    network = build_psnet(MODULE, modules=8, seed=4)
    (job,) = place_jobs(network, [JobRequest(name="big", workers=20, servers=6, size_bytes=1e8)]).jobs
    assert len(job.modules) == 2
    assert network.wiring.graph().has_edge(*job.modules)
    (wide,) = place_jobs(network, [JobRequest(name="wide", workers=60, servers=3, size_bytes=1e8)]).jobs
    assert len(wide.modules) == 5
    assert nx.is_connected(network.wiring.graph().subgraph(wide.modules))


def test_place_jobs__exact_packing_beats_first_fit() -> None:
    # First-fit decreasing puts 7 + 5 together and strands a 4; 7 + 5, 4 + 4 + 4 is what fits.
    network = build_psnet(Module(ecs_ports=12, tor_downlinks=4, tor_uplinks=6), modules=2)
    sizes = [6, 5, 4, 3, 3, 3]
    requests = [JobRequest(name=f"j{n}", workers=w, servers=1, size_bytes=1e8) for n, w in enumerate(sizes)]
    result = place_jobs(network, requests)
    assert len(result.whole) == 6


def test_place_jobs__leaves_running_jobs_alone() -> None:
    network = build_psnet(MODULE, modules=2)
    running = place_jobs(network, [JobRequest(name="old", workers=9, servers=2, size_bytes=1e8)]).jobs
    new = place_jobs(network, [JobRequest(name="new", workers=9, servers=2, size_bytes=1e8)], placed=running).jobs
    check_jobs(network, (*running, *new))
    assert running[0].modules != new[0].modules


@settings(deadline=None, max_examples=25)
@given(requests=request_lists(), faster=st.floats(1, 4), ratio=st.floats(1, 4))
def test_place_and_route__more_bandwidth_is_never_slower(
    requests: list[JobRequest], faster: float, ratio: float
) -> None:
    slow = build_psnet(MODULE, modules=5, seed=3)
    quick = replace(MODULE, worker_bits_per_second=MODULE.worker_bits_per_second * faster, server_ratio=ratio)
    fast = build_psnet(quick, modules=5, seed=3)
    before = route_jobs(slow, place_jobs(slow, requests).jobs)
    after = route_jobs(fast, place_jobs(fast, requests).jobs)
    assert after.transfer_seconds <= before.transfer_seconds * (1 + 1e-6)


def test_place_jobs__names_the_missing_hosts() -> None:
    network = build_psnet(MODULE, modules=2)
    with pytest.raises(TopologyError, match=names("7 servers", "6 are free", "drop 1")):
        place_jobs(network, [JobRequest(name="a", workers=1, servers=7, size_bytes=1.0)])
    with pytest.raises(TopologyError, match="two jobs are named 'a'"):
        place_jobs(network, [JobRequest(name="a", workers=1, servers=1, size_bytes=1.0)] * 2)
