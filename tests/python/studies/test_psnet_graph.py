from __future__ import annotations

import networkx as nx
from drawn_topologies import modules
from hypothesis import given, settings
from hypothesis import strategies as st

from mlt.planners.psnet.psnet import Module, build_psnet
from studies import graph as g
from studies.psnet.psnet_graph import logical_graph, physical_graph


@settings(deadline=None, max_examples=60)
@given(module=modules, count=st.integers(1, 6), seed=st.integers(0, 99))
def test_logical_graph__every_worker_is_two_hops_from_every_server_of_its_module(
    module: Module, count: int, seed: int
) -> None:
    network = build_psnet(module, modules=count, seed=seed)
    graph = logical_graph(network)
    for mid in network.mids:
        for worker in network.workers(mid):
            distance = nx.single_source_shortest_path_length(graph, worker, cutoff=2)
            assert {distance[server] for server in network.servers(mid)} == {2}
    for server in g.hosts(graph, role="server"):
        assert graph.degree(server) == network.tors
    assert nx.is_connected(graph)


@settings(deadline=None, max_examples=60)
@given(module=modules, count=st.integers(1, 6))
def test_physical_graph__uses_no_more_ports_than_there_are(module: Module, count: int) -> None:
    network = build_psnet(module, modules=count)
    graph = physical_graph(network)

    def ports(node: str) -> int:
        return sum(data["links"] for _, _, data in graph.edges(node, data=True))

    for mid in network.mids:
        assert ports(f"ecs-{mid}") <= 2 * module.ecs_ports
        assert ports(f"supernode-{mid}") <= 2 * module.tors
        for t in range(module.tors):
            assert ports(f"tor-{mid}-{t + 1}") <= module.tor_downlinks + module.tor_uplinks
