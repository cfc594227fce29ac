"""PSNet as graphs: the cables (``physical_graph``) and the network that packets use (``logical_graph``).

The electrical circuit switch connects ports without reading packets (PSNet, section 3.1). It is absent from the logical
graph, where each worker has one ToR, two hops from every parameter server of its module. In the physical graph the
circuit switch is a node of role ``ecs``, and the M_d cables between it and a ToR are one trunk.
"""

from __future__ import annotations

from collections.abc import Mapping

import networkx as nx

from mlt.planners.psnet.addressing import address_table
from mlt.planners.psnet.circuits import Circuits, default_circuits
from mlt.planners.psnet.psnet import PSNet, ecs_name, supernode_name, tor_name
from studies.graph import Graph, add_host, add_link, add_switch


def logical_graph(network: PSNet, circuits: Mapping[int, Circuits] | None = None) -> Graph:
    """Workers connected to the ToRs of their circuits; a worker without a circuit has no link.

    circuits: per module number; modules not named have their default circuits.
    """
    graph = _base(network, name="psnet")
    for mid in network.mids:
        module = network.module(mid)
        state = (circuits or {}).get(mid) or default_circuits(module)
        for worker in range(module.worker_count):
            tor = state.tor(worker)
            if tor is not None:
                _link(
                    network, graph, network.worker_name(mid, worker), tor_name(mid, tor), module.worker_bits_per_second
                )
    return graph


def physical_graph(network: PSNet) -> Graph:
    """Every cable, with the circuit switches as nodes."""
    graph = _base(network, name="psnet-physical")
    for mid in network.mids:
        module = network.module(mid)
        ecs = add_switch(graph, ecs_name(mid), role="ecs", level=1, group=mid, index=0)
        for worker in network.workers(mid):
            _link(network, graph, worker, ecs, module.worker_bits_per_second)
        for t in range(network.tors):
            _link(network, graph, ecs, tor_name(mid, t), module.worker_bits_per_second, links=module.tor_downlinks)
    return graph


def _base(network: PSNet, *, name: str) -> Graph:
    """The network without the workers' links."""
    graph: Graph = nx.Graph(name=name, modules=len(network.modules), tors=network.tors)
    for mid in network.mids:
        module = network.module(mid)
        rate = module.server_bits_per_second
        supernode = add_switch(graph, supernode_name(mid), role="supernode", level=3, group=mid, index=0)
        for t in range(network.tors):
            tor = add_switch(graph, tor_name(mid, t), role="tor", level=2, group=mid, index=t)
            _link(network, graph, tor, supernode, rate)
        for s, server in enumerate(network.servers(mid)):
            add_host(graph, server, role="server", group=mid, index=s)
            for t in range(network.tors):
                _link(network, graph, server, tor_name(mid, t), rate)
        for w, worker in enumerate(network.workers(mid)):
            add_host(graph, worker, role="worker", group=mid, index=w)
    for (a, b), links in network.wiring.trunks().items():
        _link(network, graph, supernode_name(a), supernode_name(b), network.inter_rate, links=links)
    for node, address in address_table(network).items():
        graph.nodes[node]["address"] = str(address)
    return graph


def _link(network: PSNet, graph: Graph, a: str, b: str, rate: float, *, links: int = 1) -> None:
    add_link(graph, a, b, bits_per_second=rate, latency_seconds=network.latency_seconds, links=links)
