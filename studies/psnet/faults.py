"""Reachability when links, ToRs, servers or other parts of a PSNet fail, and repair by new circuits.

Source: PSNet, sections 2 (requirements), 3.1 and 3.4 (claims of fault tolerance). The paper argues; this module counts.
Three results for every worker and every parameter server of the same module:

* ``as_is``: the old circuit still leads to a ToR with a link to that server (two hops);
* ``repaired``: the same after new circuits around the failures;
* ``any_way``: after that, over any route through switches (for example another ToR through the SuperNode switch).

The figures show two facts that the paper does not state. The circuit switch is a single point of failure of its module.
A ToR's workers can move only to free ports, and a module that uses all of its R * M_d ports has none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from math import comb

import networkx as nx

from mlt.planners.psnet.checks import TopologyError
from mlt.planners.psnet.circuits import Circuits, default_circuits
from mlt.planners.psnet.psnet import PSNet, ecs_name, supernode_name, tor_name
from studies.graph import Graph
from studies.psnet.psnet_graph import logical_graph, physical_graph
from studies.psnet.repair import ModuleJob, Repair, repair_circuits

#: A node's name, or one cable: (node, node, which of the parallel ones, from 0), as in the physical graph.
Element = str | tuple[str, str, int]


@dataclass(frozen=True)
class Reach:
    """Pairs in a degraded network. Module pairs count once, ordered; ``stranded``: workers that no circuit could
    connect."""

    pairs: int
    as_is: int
    repaired: int
    any_way: int
    module_pairs: int
    modules_joined: int
    stranded: int
    circuits_moved: int


@lru_cache(maxsize=8)
def _cables(network: PSNet) -> Graph:
    """The physical graph, built once per network; must not be changed."""
    return physical_graph(network)


def repair(
    network: PSNet, failed: Iterable[Element], *, circuits: Mapping[int, Circuits] | None = None
) -> dict[int, Repair]:
    """New circuits for every module, around the failures.

    All workers of a module count as one job. They go to ToRs that still reach every working server. Workers for whom no
    such port is left go to any other working ToR, from which the SuperNode switch forwards. If every ToR has lost
    another server, this can leave fewer pairs two hops apart than moving only the workers with a failed circuit. In
    that case only those workers are moved.
    """
    broken = _Broken.of(network, failed)
    plans = {}
    for mid in network.mids:
        module = network.module(mid)
        state = (circuits or {}).get(mid) or default_circuits(module)
        everyone = range(module.worker_count)
        dead_workers = broken.dead_workers(network, mid)
        dead_tors = [t for t in range(network.tors) if tor_name(mid, t) in broken.nodes]
        full = frozenset(t for t in range(network.tors) if broken.serves_all(network, mid, t))
        live = [w for w in everyone if w not in dead_workers]
        first = repair_circuits(
            module,
            [ModuleJob(name="direct", workers=tuple(live), tors=full)],
            current=state,
            dead_ports=broken.ports.get(mid, ()),
            dead_tors=dead_tors,
            dead_workers=dead_workers,
        )
        left = set(first.stranded)
        if left and full != frozenset(range(network.tors)):
            direct = ModuleJob(name="direct", workers=tuple(w for w in live if w not in left), tors=full)
            detour = ModuleJob(name="detour", workers=tuple(sorted(left)))
            first = repair_circuits(
                module,
                [direct, detour],
                current=state,
                dead_ports=broken.ports.get(mid, ()),
                dead_tors=dead_tors,
                dead_workers=dead_workers,
            )
        fewest = repair_circuits(
            module,
            [],
            current=state,
            dead_ports=broken.ports.get(mid, ()),
            dead_tors=dead_tors,
            dead_workers=dead_workers,
        )
        served = [broken.served(network, mid, t) for t in range(network.tors)]
        pairs = [sum(served[end[0]] for end in plan.circuits.of if end is not None) for plan in (first, fewest)]
        if pairs[1] > pairs[0]:
            lost = tuple(w for w in live if fewest.circuits.of[w] is None)
            first = replace(fewest, stranded=lost)
        plans[mid] = first
    return plans


def degraded_graph(
    network: PSNet, failed: Iterable[Element], *, circuits: Mapping[int, Circuits] | None = None
) -> Graph:
    """The logical graph without the failed parts; a trunk keeps its remaining links and their share of its
    bandwidth."""
    broken = _Broken.of(network, failed)
    graph = logical_graph(network, circuits)
    for (a, b), count in broken.trunks.items():
        edge = graph.edges[a, b]
        if count >= edge["links"]:
            graph.remove_edge(a, b)
            continue
        edge["bits_per_second"] *= (edge["links"] - count) / edge["links"]
        edge["links"] -= count
    for mid in network.mids:
        state = (circuits or {}).get(mid) or default_circuits(network.module(mid))
        dead = broken.dead_workers(network, mid)
        for worker, circuit in enumerate(state.of):
            if circuit is not None and (worker in dead or circuit in broken.ports.get(mid, ())):
                graph.remove_edge(network.worker_name(mid, worker), tor_name(mid, circuit[0]))
    graph.remove_nodes_from([node for node in broken.nodes if node in graph])
    return graph


def reach(network: PSNet, failed: Iterable[Element], *, circuits: Mapping[int, Circuits] | None = None) -> Reach:
    """Count the pairs that still reach each other. Pairs with a failed end count as lost."""
    failed = tuple(failed)
    before = degraded_graph(network, failed, circuits=circuits)
    plans = repair(network, failed, circuits=circuits)
    after = degraded_graph(network, failed, circuits={mid: plan.circuits for mid, plan in plans.items()})
    modules = len(network.modules)
    joined = nx.Graph(after.subgraph([supernode_name(mid) for mid in network.mids if supernode_name(mid) in after]))
    return Reach(
        pairs=sum(module.worker_count * module.server_count for module in network.modules),
        as_is=_direct_pairs(network, before),
        repaired=_direct_pairs(network, after),
        any_way=_joined_pairs(network, after),
        module_pairs=comb(modules, 2),
        modules_joined=sum(comb(len(part), 2) for part in nx.connected_components(joined)),
        stranded=sum(len(plan.stranded) for plan in plans.values()),
        circuits_moved=sum(len(plan.moved) for plan in plans.values()),
    )


def unreached(network: PSNet, failed: Iterable[Element]) -> dict[str, tuple[str, ...]]:
    """Unreachable pairs: worker -> servers of its module to which no route exists, with new circuits.

    Workers that still reach all servers are omitted; failed ends count as unreached.
    """
    failed = tuple(failed)
    plans = repair(network, failed)
    graph = degraded_graph(network, failed, circuits={mid: plan.circuits for mid, plan in plans.items()})
    parts = _fabric_parts(graph)
    out = {}
    for mid in network.mids:
        servers = {server: _parts_of(graph, parts, server) for server in network.servers(mid)}
        for worker in network.workers(mid):
            mine = _parts_of(graph, parts, worker)
            lost = tuple(server for server, theirs in servers.items() if not mine & theirs)
            if lost:
                out[worker] = lost
    return out


@dataclass(frozen=True)
class _Broken:
    """Failures sorted by the part that fails."""

    nodes: frozenset[str]
    ports: Mapping[int, frozenset[tuple[int, int]]]
    cut_workers: frozenset[str]
    trunks: Mapping[tuple[str, str], int]

    @classmethod
    def of(cls, network: PSNet, failed: Iterable[Element]) -> _Broken:
        failed = set(failed)
        graph = _cables(network)
        ports: dict[int, set[tuple[int, int]]] = {}
        cut_workers: set[str] = set()
        trunks: Counter[tuple[str, str]] = Counter()
        for element in sorted((e for e in failed if not isinstance(e, str)), key=str):
            a, b, n = element
            if not graph.has_edge(a, b) or not 0 <= n < graph.edges[a, b]["links"]:
                raise TopologyError(f"no cable {n} between {a} and {b}")
            ends = {graph.nodes[a]["role"]: a, graph.nodes[b]["role"]: b}
            if "worker" in ends:
                cut_workers.add(ends["worker"])
            elif "ecs" in ends:
                tor = graph.nodes[ends["tor"]]
                ports.setdefault(tor["group"], set()).add((tor["index"], n))
            else:
                trunks[a, b] += 1
        nodes = frozenset(element for element in failed if isinstance(element, str))
        unknown = sorted(node for node in nodes if node not in graph)
        if unknown:
            raise TopologyError(f"no node {unknown[0]!r} in this PSNet")
        return cls(nodes, {mid: frozenset(p) for mid, p in ports.items()}, frozenset(cut_workers), trunks)

    def dead_workers(self, network: PSNet, mid: int) -> frozenset[int]:
        names = network.workers(mid)
        all_dead = ecs_name(mid) in self.nodes
        return frozenset(
            w for w, name in enumerate(names) if all_dead or name in self.nodes or name in self.cut_workers
        )

    def served(self, network: PSNet, mid: int, tor: int) -> int:
        """Number of working servers of the module to which a ToR still has a link."""
        name = tor_name(mid, tor)
        if name in self.nodes:
            return 0
        live = [server for server in network.servers(mid) if server not in self.nodes]
        return sum(1 for s in live if not self.trunks.get((s, name)) and not self.trunks.get((name, s)))

    def serves_all(self, network: PSNet, mid: int, tor: int) -> bool:
        """Whether a ToR works and has a link to every working server of its module."""
        live = sum(1 for server in network.servers(mid) if server not in self.nodes)
        return tor_name(mid, tor) not in self.nodes and self.served(network, mid, tor) == live


def _direct_pairs(network: PSNet, graph: Graph) -> int:
    """Worker-server pairs of one module two hops apart."""
    total = 0
    for mid in network.mids:
        servers = {server for server in network.servers(mid) if server in graph}
        served = {
            name: len(servers & set(graph.neighbors(name)))
            for t in range(network.tors)
            if (name := tor_name(mid, t)) in graph
        }
        for worker in network.workers(mid):
            if worker in graph:
                total += sum(served.get(tor, 0) for tor in graph.neighbors(worker))
    return total


def _joined_pairs(network: PSNet, graph: Graph) -> int:
    """Worker-server pairs of one module with any route through switches between them."""
    parts = _fabric_parts(graph)
    total = 0
    for mid in network.mids:
        servers = [_parts_of(graph, parts, server) for server in network.servers(mid)]
        seen: dict[frozenset[int], int] = {}
        for worker in network.workers(mid):
            mine = frozenset(_parts_of(graph, parts, worker))
            if mine not in seen:
                seen[mine] = sum(1 for server in servers if server & mine)
            total += seen[mine]
    return total


def _fabric_parts(graph: Graph) -> dict[str, int]:
    """Connected component of each switch."""
    fabric = nx.Graph(graph.subgraph([n for n, d in graph.nodes(data=True) if d["kind"] == "switch"]))
    return {node: n for n, part in enumerate(nx.connected_components(fabric)) for node in part}


def _parts_of(graph: Graph, parts: Mapping[str, int], host: str) -> set[int]:
    """The components of the fabric to which a host is connected; none if it failed."""
    return {parts[node] for node in graph.neighbors(host)} if host in graph else set()
