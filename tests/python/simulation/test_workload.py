"""Plans as transfers, and their simulated times beside the model's."""

from __future__ import annotations

from collections import Counter

import pytest
from checks import names

from mlt.planners.auto.alternatives import Alternative, Skipped, parameter_server, ring
from mlt.planners.cluster import Cluster, Host, Job, Link, Switch
from mlt.planners.plan import Aggregation, JobPlan, ServerShare, WorkerCluster, new_plan
from mlt.planners.plan.effective import effective_cluster
from mlt.planners.psnet.clos import fat_tree
from mlt.planners.psnet.cluster_io import psnet_cluster
from mlt.planners.psnet.jobs import JobRequest
from mlt.planners.psnet.placement import place_jobs
from mlt.planners.psnet.plan_section import plan_topology, with_topology
from mlt.planners.psnet.psnet import Module, build_psnet
from mlt.simulation.report import network_of, simulate_alternatives
from mlt.simulation.scenario import SEGMENT_BYTES, Transfer, scenario_of
from mlt.simulation.workload import aggregation_tree, push_pull, ring_all_reduce

GBIT = 1e9


def racks(leaves: int, per_leaf: int, *, model_size: float, links: bool = True, card: float = 10 * GBIT) -> Cluster:
    """Workers with NICs of rate ``card`` in racks, a server at 10 Gbit/s in its own rack, two spines of ample rate."""
    workers = [f"w{leaf}-{host}" for leaf in range(leaves) for host in range(per_leaf)]
    hosts = tuple(Host(name=name, bandwidth=card, cpu_cores=64) for name in workers)
    hosts += (Host(name="ps", bandwidth=10 * GBIT),)
    job = Job(name="j", workers=tuple(workers), servers=("ps",), model_size=model_size)
    if not links:
        return Cluster(hosts=hosts, jobs=(job,))
    switches = [Switch(name=f"leaf{leaf}") for leaf in range(leaves + 1)]
    switches += [Switch(name=f"spine{spine}", tier=2) for spine in range(2)]
    cables = [Link(a=name, b=f"leaf{name[1:].split('-')[0]}", bandwidth=card) for name in workers]
    cables.append(Link(a="ps", b=f"leaf{leaves}", bandwidth=10 * GBIT))
    cables += [
        Link(a=f"leaf{leaf}", b=f"spine{spine}", bandwidth=20 * GBIT) for leaf in range(leaves + 1) for spine in (0, 1)
    ]
    return Cluster(hosts=hosts, switches=tuple(switches), links=tuple(cables), jobs=(job,))


def one_aggregator_per_leaf(leaves: int, per_leaf: int) -> Aggregation:
    clusters = tuple(
        WorkerCluster(aggregator=f"w{leaf}-0", members=tuple(f"w{leaf}-{host}" for host in range(1, per_leaf)))
        for leaf in range(leaves)
    )
    return Aggregation(
        method="by-hand", clusters=clusters, shares=(ServerShare(server="ps", share=1.0),), rate=0, time=0
    )


def received(transfers: list[Transfer]) -> Counter[str]:
    sums: Counter[str] = Counter()
    for transfer in transfers:
        sums[transfer.destination] += transfer.size
    return sums


def assert_ordered(transfers: list[Transfer]) -> None:
    for index, transfer in enumerate(transfers):
        for before in transfer.after:
            assert before < index
            assert transfers[before].destination == transfer.source


def test_push_pull__everyone_gets_the_whole_model() -> None:
    size = 8e6
    transfers = push_pull(("a", "b", "c"), {"a": 0.25, "s": 0.75}, size=size)
    assert_ordered(transfers)
    got = received(transfers)
    assert got["s"] == pytest.approx(3 * 0.75 * size, rel=1e-3)
    assert got["a"] == pytest.approx(2 * 0.25 * size + 0.75 * size, rel=1e-3)
    assert got["b"] == got["c"] == pytest.approx(size, rel=1e-3)


def test_ring__every_link_carries_two_n_minus_one_chunks() -> None:
    transfers = ring_all_reduce(("a", "b", "c", "d"), size=8e6)
    assert_ordered(transfers)
    assert list(received(transfers).values()) == pytest.approx([2 * 3 / 4 * 8e6] * 4, rel=1e-3)
    assert ring_all_reduce(("a",), size=8e6) == []


def test_tree__aggregators_wait_for_all_their_members() -> None:
    transfers = aggregation_tree(one_aggregator_per_leaf(2, 3), size=8e6)
    assert_ordered(transfers)
    got = received(transfers)
    assert got["ps"] == pytest.approx(2 * 8e6, rel=1e-3)
    assert got["w0-0"] == pytest.approx(3 * 8e6, rel=1e-3)
    assert got["w1-2"] == pytest.approx(8e6, rel=1e-3)
    to_server = [transfer for transfer in transfers if transfer.destination == "ps"]
    assert {len(transfer.after) for transfer in to_server} == {2}


def test_scenario__counts_hops_and_caps_nics() -> None:
    cluster = racks(2, 2, model_size=8e6)
    scenario = scenario_of(cluster, (*cluster.jobs[0].workers, "ps"))
    assert scenario.hops("w0-0", "w0-1") == 2
    assert scenario.hops("w0-0", "ps") == 4
    assert scenario.packet_hops([Transfer("w0-0", "ps", 10 * SEGMENT_BYTES)]) == 40
    slow = cluster.hosts[0].model_copy(update={"bandwidth": 1 * GBIT})
    capped = Cluster(hosts=(slow, *cluster.hosts[1:]), switches=cluster.switches, links=cluster.links)
    size = 1_000_000
    outcome = scenario_of(capped, ("w0-0", "w0-1")).run([Transfer("w0-0", "w0-1", size)])
    assert outcome.duration >= size * 8 / (1 * GBIT)


def test_scenario__rejects_impossible_worlds() -> None:
    cluster = racks(2, 2, model_size=8e6)
    alone = Cluster(hosts=cluster.hosts, switches=cluster.switches, links=cluster.links[1:])
    with pytest.raises(ValueError, match="'w0-0'"):
        scenario_of(alone, ("w0-0", "ps"))
    with pytest.raises(ValueError, match=names("300 hosts", "256")):
        scenario_of(cluster, [f"h{i}" for i in range(300)])


@pytest.mark.parametrize("workers", [8, 16])
def test_incast__of_n_workers_takes_n_times_one(workers: int) -> None:
    cluster = racks(1, workers, model_size=8e6, links=False)
    scenario = scenario_of(cluster, (*cluster.jobs[0].workers, "ps"))
    size = 6_000_000
    one = scenario.run([Transfer("w0-0", "ps", size)]).duration
    everyone = scenario.run([Transfer(name, "ps", size) for name in cluster.jobs[0].workers]).duration
    assert everyone / one == pytest.approx(workers, rel=0.1)


def test_tree__beats_the_parameter_server_as_the_model_says() -> None:
    leaves, per_leaf = 4, 4
    cluster = racks(leaves, per_leaf, model_size=32e6, card=20 * GBIT)
    job = cluster.jobs[0]
    direct = parameter_server(cluster, job)
    assert not isinstance(direct, Skipped)
    section = one_aggregator_per_leaf(leaves, per_leaf)
    # The server takes in four streams instead of sixteen; an aggregator's NIC would allow twice that rate (ALEPH 4.1).
    modelled = leaves * job.model_size * 8 / (10 * GBIT)
    tree = Alternative(
        name="tree", time=modelled, reason="", sections=JobPlan(job="j", strategy="tree", aggregation=section)
    )
    report = simulate_alternatives(cluster, job, [direct, tree], plan=new_plan(cluster), packet_hops=3_000_000)
    ps_time, tree_time = (entry.time for entry in report.times)
    assert ps_time is not None
    assert tree_time is not None
    assert direct.time / tree.time == pytest.approx(4)
    assert ps_time / tree_time == pytest.approx(direct.time / tree.time, rel=0.2)


def test_simulate_alternatives__scales_down_and_repeats() -> None:
    cluster = racks(2, 4, model_size=400e6)
    job = cluster.jobs[0]
    ways = [ring(cluster, job), parameter_server(cluster, job)]
    alternatives = [way for way in ways if not isinstance(way, Skipped)]
    heard: list[tuple[int, float]] = []
    reports = [
        simulate_alternatives(
            cluster,
            job,
            alternatives,
            plan=new_plan(cluster),
            packet_hops=100_000,
            seed=5,
            progress=lambda index, part: heard.append((index, part)),
        )
        for _ in range(2)
    ]
    assert reports[0] == reports[1]
    assert reports[0].divisor > 100
    assert "0.1 million packet hops" in reports[0].rule
    assert {part for index, part in heard if index == 1} >= {1.0}
    for alternative, entry in zip(alternatives, reports[0].times, strict=True):
        assert entry.outcome is not None
        assert entry.outcome.hops >= 20_000
        assert entry.time is not None
        assert entry.time > alternative.time  # headers and pipeline fill are not free
        estimate = entry.estimate()
        assert estimate is not None
        assert estimate.source == "simulator"


def all_to_one(cluster: Cluster, hosts: tuple[str, ...]) -> None:
    size = 200_000
    scenario = scenario_of(cluster, hosts)
    outcome = scenario.run([Transfer(name, hosts[-1], size) for name in hosts[:-1]])
    into_last = sum(link.bandwidth for link in cluster.links_of[hosts[-1]])
    assert outcome.duration >= (len(hosts) - 1) * size * 8 / into_last
    assert all(time > 0 for time in outcome.finish)


def test_fat_tree__of_the_planners_carries_all_to_one() -> None:
    cluster = fat_tree(4)
    hosts = tuple(host.name for host in cluster.hosts)
    assert len(hosts) == 16
    scenario = scenario_of(cluster, hosts)
    assert max(scenario.hops(hosts[0], other) for other in hosts[1:]) == 6
    all_to_one(cluster, hosts)


def test_psnet__of_the_planners_carries_all_to_one() -> None:
    network = build_psnet(Module(ecs_ports=12, tor_downlinks=4, tor_uplinks=4), modules=4, seed=0)
    request = JobRequest(name="j", workers=6, servers=2, size_bytes=97e6)
    cluster = psnet_cluster(network, place_jobs(network, [request]).jobs)
    plan = with_topology(new_plan(cluster), plan_topology(cluster))
    job = cluster.jobs[0]
    with pytest.raises(ValueError, match="is a circuit switch"):
        scenario_of(cluster, job.workers)
    effective = network_of(cluster, plan)
    assert effective == effective_cluster(cluster, plan.circuits)
    all_to_one(effective, (*job.workers, *job.servers))
    assert not network_of(cluster, new_plan(cluster)).links
