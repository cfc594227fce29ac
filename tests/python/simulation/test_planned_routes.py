"""ARO's routes in the simulator: the streams that merge, and that packets follow their routes."""

from __future__ import annotations

from collections import Counter

import pytest
from checks import names
from example_clusters import fabric

from mlt.planners.auto.alternatives import Alternative, aleph, parameter_server
from mlt.planners.auto.alternatives_routing import routed
from mlt.planners.cluster import Cluster, Host, Job, Link, Switch
from mlt.planners.plan import JobPlan, PipelineUse, Route, Routing, TaskRoutes, new_plan
from mlt.planners.psnet.clos import fat_tree
from mlt.simulation.planned_routes import routed_workload, task_trees
from mlt.simulation.report import simulate_alternatives, workload_of
from mlt.simulation.scenario import Aggregator, Ways, scenario_of
from mlt.simulation.workload import NotSimulated, Workload, hosts_of

pytest.importorskip("mlt.planners.aro.convert")


def tree_of_fat_tree() -> tuple[Cluster, Job]:
    """The k = 4 fat-tree, every switch of which aggregates: twelve workers in three pods, two servers in the fourth."""
    graph = fat_tree(4)
    pods = [f"host-{pod}-{edge}-{host}" for pod in range(4) for edge in range(2) for host in range(2)]
    job = Job(name="j", workers=tuple(pods[:12]), servers=("host-3-0-0", "host-3-1-0"), model_size=20e6)
    switches = tuple(switch.model_copy(update={"aggregates": True, "pipelines": 2}) for switch in graph.switches)
    return Cluster(hosts=graph.hosts, switches=switches, links=graph.links, jobs=(job,)), job


def solved(cluster: Cluster, job: Job, **options: Alternative) -> Alternative:
    outcome = routed(cluster, job, seed=0, **options)  # type: ignore[arg-type]
    assert isinstance(outcome, Alternative)
    return outcome


def by_hand(*tasks: tuple[str, list[tuple[str, ...]]], merge: str | None = None, rate: float = 10e9) -> JobPlan:
    """Routes as given, per server; flows of a task merge at the switch ``merge`` if they pass it."""
    use = (PipelineUse(switch=merge, pipeline=0),) if merge is not None else ()
    made = [
        TaskRoutes(
            server=server,
            rate=rate,
            routes=tuple(
                Route(source=p[0], destination=server, path=p, aggregated_at=use if merge in p else ()) for p in paths
            ),
        )
        for server, paths in tasks
    ]
    return JobPlan(job="j", strategy="routes", routing=Routing(method="by-hand", tasks=tuple(made)))


def pairs_across() -> tuple[Cluster, Job]:
    """Two workers under one leaf, two servers under another, two spines; every cable runs at 10 Gbit/s."""
    names = ("a", "b", "x", "y")
    switches = [Switch(name=f"leaf{i}") for i in range(2)] + [Switch(name=f"spine{i}", tier=2) for i in range(2)]
    links = [Link(a=name, b=f"leaf{i // 2}", bandwidth=10e9) for i, name in enumerate(names)]
    links += [Link(a=f"leaf{i}", b=f"spine{j}", bandwidth=10e9) for i in range(2) for j in range(2)]
    job = Job(name="j", workers=("a", "b"), servers=("x", "y"), model_size=20e6)
    hosts = tuple(Host(name=name, bandwidth=10e9) for name in names)
    return Cluster(hosts=hosts, switches=tuple(switches), links=tuple(links), jobs=(job,)), job


def run(cluster: Cluster, job: Job, plan: JobPlan, *, size: float) -> float:
    workload = workload_of(cluster, job, plan, size=size)
    scenario = scenario_of(cluster, hosts_of(job)).with_routes(
        workload.aggregators, workload.ways, dict(workload.rates)
    )
    return scenario.run(workload.transfers).duration


def assert_ordered(workload: Workload) -> None:
    for index, transfer in enumerate(workload.transfers):
        for before in transfer.after:
            assert before < index
            assert workload.transfers[before].destination == transfer.source


def test_routed_workload__every_worker_gets_the_sum_and_the_server_one_stream() -> None:
    cluster, job = fabric(model_size=40e6)
    plan = solved(cluster, job).sections
    workload = routed_workload(plan, size=8e6)
    assert_ordered(workload)
    got: Counter[str] = Counter()
    for transfer in workload.transfers:
        got[transfer.destination] += transfer.size
    assert {got[name] for name in job.workers} == {8_000_000}
    assert got["ps"] == 8_000_000  # sixteen streams became one
    assert {place.switch for place in workload.aggregators} >= {"leaf3"}
    assert all(dict(workload.rates)[name] == pytest.approx(10e9) for name in job.workers)


def test_routed_workload__a_place_sends_on_only_when_all_its_children_are_in() -> None:
    cluster, job = fabric(model_size=40e6)
    plan = solved(cluster, job).sections
    (tree,) = task_trees(plan)
    children = tree.children
    workload = routed_workload(plan, size=8e6)
    for transfer in workload.transfers:
        if transfer.source in children and transfer.destination not in children[transfer.source]:
            arrived = {workload.transfers[index].source for index in transfer.after}
            assert arrived == set(children[transfer.source])


def test_routed_workload__one_stream_alone_passes_a_place_without_stopping() -> None:
    paths = [("a", "leaf0", "spine0", "leaf1", "x")]
    workload = routed_workload(by_hand(("x", paths), merge="spine0"), size=1e6)
    assert workload.aggregators == ()
    assert workload.ways == (Ways("a", "x", (paths[0],)),)


def test_task_trees__merged_streams_that_part_again_are_rejected() -> None:
    paths = [("a", "leaf0", "spine0", "leaf1", "x"), ("b", "leaf0", "spine1", "leaf1", "x")]
    with pytest.raises(NotSimulated, match=names("leaf0 spine0 leaf1 x", "leaf0 spine1")):
        routed_workload(by_hand(("x", paths), merge="leaf0"), size=1e6)
    with pytest.raises(NotSimulated, match="no rate"):
        routed_workload(by_hand(("x", paths), rate=0), size=1e6)


def test_routes__all_over_one_spine_give_half_the_goodput() -> None:
    cluster, job = pairs_across()
    apart = by_hand(
        ("x", [("a", "leaf0", "spine0", "leaf1", "x"), ("b", "leaf0", "spine0", "leaf1", "x")]),
        ("y", [("a", "leaf0", "spine1", "leaf1", "y"), ("b", "leaf0", "spine1", "leaf1", "y")]),
    )
    together = by_hand(
        ("x", [("a", "leaf0", "spine0", "leaf1", "x"), ("b", "leaf0", "spine0", "leaf1", "x")]),
        ("y", [("a", "leaf0", "spine0", "leaf1", "y"), ("b", "leaf0", "spine0", "leaf1", "y")]),
    )
    assert run(cluster, job, together, size=4e6) / run(cluster, job, apart, size=4e6) == pytest.approx(2, rel=0.15)


def test_routes__merging_in_the_leaf_halves_what_the_spine_carries() -> None:
    cluster, job = pairs_across()
    paths = [("a", "leaf0", "spine0", "leaf1", "x"), ("b", "leaf0", "spine0", "leaf1", "x")]
    merged, apart = (run(cluster, job, by_hand(("x", paths), merge=m), size=4e6) for m in ("leaf0", None))
    assert apart / merged == pytest.approx(2, rel=0.15)


def test_fat_tree__all_over_one_core_give_half_the_goodput() -> None:
    cluster, _ = tree_of_fat_tree()
    workers, servers = ("host-0-0-0", "host-0-1-0"), ("host-3-0-0", "host-3-1-0")
    job = Job(name="j", workers=workers, servers=servers, model_size=20e6)

    def over(planes: dict[str, int]) -> JobPlan:
        """Plane 0 is aggregation switch 0 of every pod and core 0, plane 1 the next and core 2."""

        def path(worker: str, server: str) -> tuple[str, ...]:
            (_, pod, edge, _), (_, far, leaf, _), plane = worker.split("-"), server.split("-"), planes[worker]
            up = (f"edge-{pod}-{edge}", f"aggregation-{pod}-{plane}", f"core-{2 * plane}")
            return (worker, *up, f"aggregation-{far}-{plane}", f"edge-{far}-{leaf}", server)

        return by_hand(*((server, [path(worker, server) for worker in workers]) for server in servers))

    together, apart = (run(cluster, job, over(dict(zip(workers, p, strict=True))), size=4e6) for p in ((0, 0), (0, 1)))
    assert together / apart == pytest.approx(2, rel=0.15)


def test_fat_tree__routes_come_near_the_model() -> None:
    cluster, job = tree_of_fat_tree()
    aro = solved(cluster, job)
    report = simulate_alternatives(cluster, job, [aro], plan=new_plan(cluster), packet_hops=1_000_000)
    (entry,) = report.times
    assert entry.time is not None
    assert 1 < entry.time / aro.time < 1.6


def test_leaf_spine__aggregation_in_switches_gains_as_the_model_says() -> None:
    cluster, job = fabric(model_size=40e6)
    aro, direct = solved(cluster, job), parameter_server(cluster, job)
    assert isinstance(direct, Alternative)
    report = simulate_alternatives(cluster, job, [direct, aro], plan=new_plan(cluster), packet_hops=1_000_000)
    direct_time, aro_time = (entry.time for entry in report.times)
    assert direct_time is not None
    assert aro_time is not None
    assert direct.time / aro.time == pytest.approx(16)
    assert direct_time / aro_time == pytest.approx(16, rel=0.3)


def test_tree_and_routes__both_are_simulated() -> None:
    cluster, job = fabric(strong=4, model_size=40e6)
    tree = aleph(cluster, job, method="m-wcha")
    assert isinstance(tree, Alternative)
    both = solved(cluster, job, tree=tree)
    workload = workload_of(cluster, job, both.sections, size=4e6)
    assert_ordered(workload)
    got: Counter[str] = Counter()
    for transfer in workload.transfers:
        got[transfer.destination] += transfer.size
    assert both.sections.aggregation is not None
    members = [name for group in both.sections.aggregation.clusters for name in group.members]
    assert members
    assert all(got[name] == pytest.approx(4e6, rel=1e-3) for name in members)
    duration = run(cluster, job, both.sections, size=4e6)
    assert duration >= 4e6 * 8 / 10e9


def test_with_routes__rejects_impossible_worlds() -> None:
    cluster, job = pairs_across()
    scenario = scenario_of(cluster, hosts_of(job))
    with pytest.raises(ValueError, match="'leaf9'"):
        scenario.with_routes((), [Ways("a", "x", (("a", "leaf9", "x"),))])
    with pytest.raises(ValueError, match=names("17 ways", "16")):
        scenario.with_routes((), [Ways("a", "x", (("a", "leaf0", "spine0", "leaf1", "x"),) * 17)])
    many = [Aggregator(f"p{i}", "leaf0") for i in range(253)]
    with pytest.raises(ValueError, match=names("257 hosts", "256")):
        scenario.with_routes(many, [])


def test_with_routes__hops_follow_the_plan() -> None:
    cluster, job = pairs_across()
    scenario = scenario_of(cluster, hosts_of(job))
    assert scenario.hops("a", "b") == 2
    detour = (("a", "leaf0", "spine0", "leaf1", "x"),)
    planned = scenario.with_routes([Aggregator("p", "spine1")], [Ways("a", "x", detour)])
    assert planned.hops("a", "x") == planned.hops("x", "a") == 4
    assert planned.hops("a", "p") == 3
