"""Seeded instances: the leaf-spine clusters of the paper's section IV-A and fat-trees.

Three port-to-pipeline maps are offered, because the paper leaves it open: ``class`` splits each port class (down, up)
in order over the pipelines, ``interleaved`` deals the ports of a class out in turn, ``whole`` splits all ports of the
switch in order (down ports first), so that down and up ports sit in different pipelines.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Literal

from mlt.planners.aro.instance import Instance, InstanceError, Job, Link, Port, Switch, Task
from mlt.planners.psnet import clos
from mlt.planners.psnet.checks import TopologyError
from studies.aro.instance_check import check
from studies.graph import Graph, graph_of, hosts, switches

Mapping = Literal["class", "interleaved", "whole"]
MAPPINGS: tuple[Mapping, ...] = ("class", "interleaved", "whole")


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Jobs to draw: ``workers`` and ``tasks`` are per job; workers of different jobs never share a host."""

    jobs: int = 1
    tasks: int = 1
    workers: int = 200


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """Programmable share of all switches, pipelines each, port map, and whether PS leaves count in the share.

    The paper says both that 20 % of 48 switches are programmable (its figure 7: nine of them) and that the leaf of a
    PS always is; ``ps_leaf_in_share`` decides whether those leaves are among the nine or on top of them.
    """

    share: float = 0.2
    pipelines: int = 4
    mapping: Mapping = "class"
    ps_leaf_in_share: bool = True
    gbps: float = 100.0


def pipelines_of(down: Sequence[str], up: Sequence[str], *, count: int, mapping: Mapping) -> tuple[Port, ...]:
    """Number the ports (down first, then up) and give each its pipeline."""

    def split(size: int) -> list[int]:
        return [index * count // size for index in range(size)]

    names = [*down, *up]
    if mapping == "class":
        order = split(len(down)) + split(len(up))
    elif mapping == "interleaved":
        order = [index % count for size in (len(down), len(up)) for index in range(size)]
    elif mapping == "whole":
        order = split(len(names))
    else:
        raise InstanceError(f"port mapping {mapping!r}: expected one of {', '.join(MAPPINGS)}")
    return tuple(Port(name, number, pipeline) for number, (name, pipeline) in enumerate(zip(names, order, strict=True)))


@dataclass(frozen=True)
class _Fabric:
    """Switch name -> (tier, down peers, up peers); leaves first, in order."""

    switches: dict[str, tuple[int, list[str], list[str]]]
    hosts: list[str]
    leaves: list[str]


def leaf_spine(
    *,
    leaves: int = 24,
    spines: int = 24,
    hosts_per_leaf: int = 24,
    hardware: Hardware | None = None,
    workload: Workload | None = None,
    seed: int = 0,
) -> Instance:
    """The paper's cluster by default: 24 leaves, 24 spines, 576 servers, 100 Gbit/s everywhere."""
    graph = graph_of(clos.leaf_spine(leaves, spines, hosts_per_leaf=hosts_per_leaf))
    return _draw(_fabric(graph, _plain_name), hardware or Hardware(), workload or Workload(), seed)


def fat_tree(
    *, k: int = 8, hardware: Hardware | None = None, workload: Workload | None = None, seed: int = 0
) -> Instance:
    """A k-ary fat-tree: k pods of k/2 edge and k/2 aggregation switches, (k/2)^2 cores, k^3/4 hosts."""
    half = k // 2

    def name_of(node: dict[str, Any]) -> str:
        if node["role"] == "core":
            return f"core{node['index'] // half}_{node['index'] % half}"
        return f"{'agg' if node['role'] == 'aggregation' else 'edge'}{node['group']}_{node['index']}"

    try:
        graph = graph_of(clos.fat_tree(k))
    except TopologyError as error:
        raise InstanceError(str(error)) from None
    return _draw(_fabric(graph, name_of), hardware or Hardware(), workload or Workload(workers=32), seed)


def _plain_name(node: dict[str, Any]) -> str:
    return f"{node['role']}{node['index']}"


def _fabric(graph: Graph, name_of: Callable[[dict[str, Any]], str]) -> _Fabric:
    """The switches of a folded Clos network by level, which is the order that seeds draw from; hosts in build order."""
    nodes = graph.nodes
    found = hosts(graph)
    names = {one: f"host{i}" for i, one in enumerate(found)}
    names |= {one: name_of(node) for one, node in nodes.items() if node["kind"] == "switch"}
    order = sorted(switches(graph), key=lambda one: (nodes[one]["level"], nodes[one]["group"], nodes[one]["index"]))
    table = {}
    for one in order:
        level = nodes[one]["level"]
        down, up = ([names[n] for n in graph.neighbors(one) if (nodes[n]["level"] < level) == below]
                    for below in (True, False))  # fmt: skip
        table[names[one]] = (level - 1, down, up)
    return _Fabric(table, [names[one] for one in found], [names[one] for one in order if nodes[one]["level"] == 1])


def _draw(fabric: _Fabric, hardware: Hardware, workload: Workload, seed: int) -> Instance:
    """Task t's PS is the first host under leaf t; programmable switches and workers are uniform draws."""
    random = Random(seed)
    per_leaf = len(fabric.hosts) // len(fabric.leaves)
    servers = workload.jobs * workload.tasks
    ps = [fabric.hosts[(t % len(fabric.leaves)) * per_leaf + t // len(fabric.leaves)] for t in range(servers)]
    ps_leaves = [fabric.leaves[t % len(fabric.leaves)] for t in range(min(servers, len(fabric.leaves)))]
    share = int(hardware.share * len(fabric.switches) + 1e-9)
    if hardware.ps_leaf_in_share:
        rest = [name for name in fabric.switches if name not in set(ps_leaves)]
        chosen = {*ps_leaves, *random.sample(rest, max(0, share - len(ps_leaves)))}
    else:
        chosen = {*ps_leaves, *random.sample(list(fabric.switches), share)}
    free = [host for host in fabric.hosts if host not in set(ps)]
    wanted = workload.jobs * workload.workers
    if wanted > len(free):
        raise InstanceError(f"{wanted} exclusive workers wanted, but only {len(free)} hosts are free of servers")
    drawn = random.sample(free, wanted)
    jobs = tuple(
        Job(
            name=f"job{j}",
            workers=tuple(drawn[j * workload.workers : (j + 1) * workload.workers]),
            tasks=tuple(Task(f"task{t}", ps[j * workload.tasks + t]) for t in range(workload.tasks)),
        )
        for j in range(workload.jobs)
    )
    switches = tuple(
        Switch(
            name=name,
            tier=tier,
            ports=pipelines_of(down, up, count=hardware.pipelines, mapping=hardware.mapping),
            programmable=name in chosen,
            pipelines=hardware.pipelines,
        )
        for name, (tier, down, up) in fabric.switches.items()
    )
    links = tuple(Link(peer, name, hardware.gbps) for name, (_, down, _) in fabric.switches.items() for peer in down)
    notes: dict[str, str | int | float | bool] = {
        "seed": seed,
        "share": hardware.share,
        "mapping": hardware.mapping,
        "ps_leaf_in_share": hardware.ps_leaf_in_share,
    }
    return check(Instance(switches, tuple(fabric.hosts), links, jobs, notes))
