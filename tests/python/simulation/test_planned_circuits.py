"""PSNet's planned paths in the simulator: shares as planned, and packets nowhere else."""

from __future__ import annotations

from collections import Counter

import pytest

from mlt.planners.auto.alternatives import Alternative
from mlt.planners.auto.alternatives_topology import Ground, prepare_ground
from mlt.planners.cluster import Cluster, Job
from mlt.planners.plan import Placement, new_plan
from mlt.planners.psnet.cluster_io import psnet_cluster
from mlt.planners.psnet.jobs import JobRequest
from mlt.planners.psnet.placement import place_jobs
from mlt.planners.psnet.psnet import Module, build_psnet
from mlt.simulation.planned_circuits import planned_ways
from mlt.simulation.report import simulate_alternatives, workload_of
from mlt.simulation.scenario import scenario_of
from mlt.simulation.workload import NotSimulated, Workload, hosts_of


def across_modules() -> tuple[Cluster, Job, Ground, Alternative]:
    """Twenty workers in two of four modules, a server in each."""
    network = build_psnet(Module(ecs_ports=12, tor_downlinks=4, tor_uplinks=4), modules=4, seed=0)
    request = JobRequest(name="j", workers=20, servers=2, size_bytes=20e6)
    cluster = psnet_cluster(network, place_jobs(network, [request]).jobs)
    job = cluster.jobs[0]
    ground = prepare_ground(cluster, job, new_plan(cluster))
    assert isinstance(ground.outcome, Alternative)
    return cluster, job, ground, ground.outcome


def placement_of(ground: Ground) -> Placement:
    placement = ground.plan.job("j").placement
    assert placement is not None
    return placement


def test_planned_ways__within_a_module_two_hops_across_as_shared() -> None:
    _, job, ground, _ = across_modules()
    placement = placement_of(ground)
    ways = planned_ways(ground.cluster, job, placement)
    assert {(pair.source, pair.destination) for pair in ways} == {(w, s) for w in job.workers for s in job.servers}
    paths: Counter[tuple[str, ...]] = Counter()
    entries: Counter[str] = Counter()
    for pair in ways:
        for way in pair.ways:
            assert way[1] == placement.tor_of[pair.source]
            assert len(way) == 3 or len(way) >= 6
        if len(pair.ways[0]) > 3:
            assert len(pair.ways) == 16
            paths.update(way[2:-2] for way in pair.ways)
            entries.update(way[-2] for way in pair.ways)
    for path in placement.options["paths"]:
        same = sum(n for way, n in paths.items() if (way[0], way[-1]) == (path["switches"][0], path["switches"][-1]))
        assert paths[tuple(path["switches"])] / same == pytest.approx(path["share"], abs=0.03)
    for module in (1, 2):
        here = {tor: n for tor, n in entries.items() if tor.startswith(f"tor-{module}-")}
        for tor, count in here.items():
            assert count / sum(here.values()) == pytest.approx(placement.options["entry"][tor], abs=0.03)


def test_planned_ways__what_the_plan_leaves_open_is_rejected() -> None:
    _, job, ground, _ = across_modules()
    placement = placement_of(ground)
    lost = placement.model_copy(update={"tor_of": {}})
    with pytest.raises(NotSimulated, match="no ToR"):
        planned_ways(ground.cluster, job, lost)
    cut = placement.model_copy(update={"options": {**placement.options, "paths": []}})
    with pytest.raises(NotSimulated, match="no path from 'worker-"):
        planned_ways(ground.cluster, job, cut)


def test_circuits__a_planned_detour_leaves_the_direct_trunk_idle() -> None:
    _, job, ground, outcome = across_modules()
    network, placement = ground.cluster, placement_of(ground)
    paths = [{**path, "share": 1.0} for path in placement.options["paths"] if "supernode-3" in path["switches"]]
    assert {len(path["switches"]) for path in paths} == {3}
    detour = placement.model_copy(update={"options": {**placement.options, "paths": paths}})
    plan = outcome.sections.model_copy(update={"placement": detour})
    workload = workload_of(network, job, plan, size=1e6)
    links = tuple(link for link in network.links if {link.a, link.b} != {"supernode-1", "supernode-2"})
    bare = Cluster(hosts=network.hosts, switches=network.switches, links=links)
    assert len(bare.links) < len(network.links)
    whole, cut = (
        scenario_of(graph, hosts_of(job)).with_routes((), workload.ways).run(workload.transfers).finish
        for graph in (network, bare)
    )
    assert whole == cut


def test_circuits__planned_paths_beat_the_shortest() -> None:
    cluster, job, ground, outcome = across_modules()
    report = simulate_alternatives(cluster, job, [outcome], plan=ground.plan, packet_hops=400_000)
    (planned,) = report.times
    assert planned.time is not None
    workload = workload_of(ground.cluster, job, outcome.sections, size=job.model_size / report.divisor)
    assert isinstance(workload, Workload)
    shortest = scenario_of(ground.cluster, hosts_of(job)).run(workload.transfers).duration * report.divisor
    assert 1 < planned.time / outcome.time < 2.2
    assert shortest / planned.time > 1.4
