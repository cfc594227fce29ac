from __future__ import annotations

from collections import Counter

import pytest
from checks import names
from routing_cases import figure_1

from mlt.planners.aro.graph import Kind, Node, TaskGraph, unfold
from mlt.planners.aro.instance import Instance, InstanceError, Job, Link, Port, Switch, Task
from studies.aro.generate import Hardware, Workload, fat_tree, leaf_spine


def _graph(instance: Instance) -> TaskGraph:
    return unfold(instance, *instance.tasks[0])


def _edges(graph: TaskGraph) -> set[tuple[str, str]]:
    pairs = zip(graph.tail, graph.head, strict=True)
    return {(graph.nodes[u].name, graph.nodes[v].name) for u, v in pairs if graph.nodes[u].name != graph.nodes[v].name}


def test_unfold__figure_4_keeps_only_up_down_paths() -> None:
    graph = _graph(figure_1([]))
    ups = {(leaf, spine) for leaf in ("L1", "L2", "L3") for spine in ("S0", "S1")}
    assert _edges(graph) == ups | {("S0", "L0"), ("S1", "L0"), ("L0", "ps")}
    assert {node.kind for node in graph.nodes} == {Kind.CS, Kind.PS}
    assert graph.supply.sum() == 5


def test_unfold__figure_5_splits_programmable_switches_into_pipelines() -> None:
    instance = leaf_spine(seed=0, hardware=Hardware(share=1.0))
    graph = _graph(instance)
    kinds = Counter((node.name, node.kind) for node in graph.nodes)
    assert kinds["spine0", Kind.INP] == 4
    assert kinds["spine0", Kind.OP] == 1
    assert kinds["leaf0", Kind.INP] == 4
    inp = graph.nodes.index(Node(Kind.INP, "spine3", 2))
    senders = {graph.nodes[graph.tail[e]].name for e in graph.edges_in[inp]}
    assert senders == {f"leaf{i}" for i in range(12, 18)}


def test_unfold__fat_tree_stays_in_the_pod_where_it_can() -> None:
    instance = fat_tree(k=4, hardware=Hardware(share=0.0), workload=Workload(workers=15))
    edges = _edges(_graph(instance))
    assert ("edge0_1", "agg0_0") in edges
    assert ("agg0_0", "edge0_0") in edges
    assert ("agg0_0", "core0_0") not in edges
    assert ("core0_0", "agg0_0") in edges
    assert ("agg1_0", "core0_1") in edges


def test_unfold__names_the_worker_that_is_cut_off() -> None:
    ports = (Port("a", 0), Port("b", 0))
    instance = Instance(
        (Switch("x", 0, ports[:1]), Switch("y", 0, ports[1:])),
        ("a", "b"),
        (Link("a", "x", 1.0), Link("b", "y", 1.0)),
        (Job("j", ("a",), (Task("t", "b"),)),),
    )
    with pytest.raises(InstanceError, match=names("'a'", "up-down", "'b'")):
        _graph(instance)


def test_sources__count_one_flow_per_pipeline_with_workers() -> None:
    instance = figure_1(["L1"])
    graph = _graph(instance)
    by_name = {graph.nodes[v].name: int(n) for v, n in enumerate(graph.sources) if n}
    assert by_name == {"L1": 1, "L2": 2, "L3": 1}
