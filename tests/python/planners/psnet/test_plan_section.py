from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlt.planners._shared.documents import InputError
from mlt.planners.cluster import Cluster
from mlt.planners.plan import JobPlan, dump_plan, new_plan, parse_plan
from mlt.planners.plan.effective import effective_cluster
from mlt.planners.plan.link_load import arc_bandwidths, placed_loads
from mlt.planners.psnet.cluster_io import psnet_cluster
from mlt.planners.psnet.jobs import JobRequest, PlacedJob
from mlt.planners.psnet.placement import place_jobs
from mlt.planners.psnet.plan_section import plan_topology, with_topology
from mlt.planners.psnet.psnet import Module, build_psnet
from studies.psnet.bct import JobProfile, one_module_time

MODULE = Module(ecs_ports=12, tor_downlinks=4, tor_uplinks=4)


def cluster_of(*sizes: tuple[int, int], modules: int = 4, seed: int = 0) -> Cluster:
    network = build_psnet(MODULE, modules=modules, seed=seed)
    requests = [JobRequest(name=f"job-{n}", workers=w, servers=p, size_bytes=97e6) for n, (w, p) in enumerate(sizes)]
    return psnet_cluster(network, place_jobs(network, requests).jobs)


def test_plan_topology__testbed_job_is_equation_5() -> None:
    cluster = cluster_of((6, 2))
    made = plan_topology(cluster)
    job = JobProfile(workers=6, servers=2, size_bytes=97e6)
    expected = one_module_time(job, tors=3, worker_bits_per_second=MODULE.worker_bits_per_second, server_ratio=1.0)
    assert made.seconds["job-0"] == pytest.approx(expected.seconds)
    # As cabled the first six workers are on two ToRs: worker(4, 2, 0).
    assert made.as_cabled["job-0"] == pytest.approx(2 * expected.seconds, rel=1e-2)


@settings(deadline=None, max_examples=25)
@given(sizes=st.lists(st.tuples(st.integers(1, 14), st.integers(1, 4)), min_size=1, max_size=3), seed=st.integers(0, 9))
def test_with_topology__plan_fits_its_cluster_and_its_circuits_exist(sizes: list[tuple[int, int]], seed: int) -> None:
    cluster = cluster_of(*sizes, seed=seed)
    plan = with_topology(new_plan(cluster), plan_topology(cluster))
    assert parse_plan(dump_plan(plan)) == plan
    assert plan.mismatches(cluster) == []
    cables: dict[tuple[str, int], str] = {}
    for link in cluster.links:
        for end, other in ((link.a, link.b), (link.b, link.a)):
            cables[end, cluster.port(link, end)] = other
    ends = [(c.switch, port) for c in plan.circuits for port in (c.a_port, c.b_port)]
    assert len(set(ends)) == len(ends)
    for circuit in plan.circuits:
        assert circuit.switch is not None
        assert circuit.a_port is not None
        assert circuit.b_port is not None
        assert cables[circuit.switch, circuit.a_port] == circuit.a
        assert cables[circuit.switch, circuit.b_port] == circuit.b
    tor_of = {circuit.a: circuit.b for circuit in plan.circuits}
    for job in cluster.jobs:
        placement = plan.job(job.name).placement
        assert placement is not None
        assert placement.tor_of == {worker: tor_of[worker] for worker in job.workers}


def test_plan_topology__setting_circuits_never_makes_the_slowest_job_slower() -> None:
    for seed in range(5):
        made = plan_topology(cluster_of((14, 4), (7, 1), (5, 2), seed=seed))
        assert max(made.seconds.values()) <= max(made.as_cabled.values()) * (1 + 1e-9)


def test_with_topology__keeps_other_sections_and_replaces_its_own_note() -> None:
    cluster = cluster_of((6, 2))
    plan = new_plan(cluster).with_job(JobPlan(job="job-0", notes=("mine",)))
    once = with_topology(plan, plan_topology(cluster))
    twice = with_topology(once, plan_topology(cluster))
    assert once == twice
    assert once.job("job-0").notes[0] == "mine"
    assert len(once.job("job-0").notes) == 2


def test_plan_topology__rejects_a_cluster_without_jobs_and_jobs_without_servers() -> None:
    network = build_psnet(MODULE, modules=1)
    with pytest.raises(InputError, match="no job to plan"):
        plan_topology(psnet_cluster(network))
    cluster = psnet_cluster(network, [PlacedJob(name="job", size_bytes=1e6, workers={1: (0,)}, servers={1: (0,)})])
    bare = cluster.model_copy(update={"jobs": (cluster.jobs[0].model_copy(update={"servers": ()}),)})
    with pytest.raises(InputError, match="has no servers"):
        plan_topology(bare)


def test_plan_topology__names_the_fullest_link_as_the_file_does() -> None:
    cluster = cluster_of((9, 1))  # three workers share each of the server's NICs, their own links are a third full
    tor, server = plan_topology(cluster).fullest
    assert server == cluster.jobs[0].servers[0]
    assert cluster.tier(tor) == 1


@pytest.mark.parametrize("sizes", [[(6, 2)], [(20, 6)], [(14, 4), (20, 5), (5, 2)]])
def test_placed_loads__need_the_time_that_the_planner_verified(sizes: list[tuple[int, int]]) -> None:
    cluster = cluster_of(*sizes)
    made = plan_topology(cluster)
    plan = with_topology(new_plan(cluster), made)
    network = effective_cluster(cluster, plan.circuits)
    bits: dict[tuple[str, str], float] = {}
    for job in cluster.jobs:
        placement = plan.job(job.name).placement
        assert placement is not None
        for arc, load in placed_loads(network, job, placement, rate=8 * job.model_size).items():
            bits[arc] = bits.get(arc, 0.0) + load
    bandwidths = arc_bandwidths(network)
    assert set(bits) <= set(bandwidths)
    assert max(bits[arc] / bandwidths[arc] for arc in bits) == pytest.approx(made.routes.transfer_seconds)
