from __future__ import annotations

from ipaddress import IPv4Address

import pytest
from checks import names
from drawn_topologies import modules
from hypothesis import given, settings
from hypothesis import strategies as st

from mlt.planners.psnet.addressing import address_table
from mlt.planners.psnet.checks import TopologyError
from mlt.planners.psnet.cluster_io import psnet_cluster
from mlt.planners.psnet.psnet import Module, PSNet, build_psnet
from mlt.planners.psnet.wiring import Wiring


def test_module__figure_2_and_the_two_examples_of_the_paper() -> None:
    figure = Module(ecs_ports=12, tor_downlinks=4, tor_uplinks=4)
    assert (figure.tors, figure.worker_count) == (3, 12)
    assert Module(ecs_ports=192, tor_downlinks=64, tor_uplinks=8).tors == 3
    # A 384-port ECS is 192 x 192: 4 ToRs, 192 hosts of 8 processors = 1536 workers, 28 server NICs of 8 = 224.
    large = Module(ecs_ports=192, tor_downlinks=48, tor_uplinks=8)
    assert (large.tors, large.worker_count * 8, large.server_count * large.tors * 8) == (4, 1536, 224)


@settings(deadline=None, max_examples=60)
@given(module=modules, count=st.integers(1, 6))
def test_address_table__every_node_has_its_own(module: Module, count: int) -> None:
    network = build_psnet(module, modules=count)
    table = address_table(network)
    assert len(set(table.values())) == len(table)
    cluster = psnet_cluster(network)
    circuit = {switch.name for switch in cluster.switches if switch.kind == "circuit"}
    assert set(table) == set(cluster.nodes) - circuit
    for name, address in table.items():
        kind, *numbers = name.split("-")
        expected = {
            "worker": lambda n: (n[0], n[1], n[2]),
            "server": lambda n: (n[0], 0, n[1]),
            "tor": lambda n: (n[0], n[1], 0),
            "supernode": lambda n: (n[0], network.tors + 1, 0),
        }[kind]([int(n) for n in numbers])
        assert address.packed == bytes((10, *expected))


def test_address_table__largest_network_stays_in_its_block() -> None:
    network = build_psnet(Module(ecs_ports=16, tor_downlinks=4, tor_uplinks=5), modules=255, seed=1)
    assert max(address_table(network).values()) < IPv4Address("10.255.255.255")


def test_psnet__heterogeneous_modules_need_one_r() -> None:
    small, large = (
        Module(ecs_ports=6, tor_downlinks=2, tor_uplinks=2),
        Module(ecs_ports=12, tor_downlinks=4, tor_uplinks=4),
    )
    links = ((1, 2),) * 3
    network = PSNet(modules=(small, large), wiring=Wiring(2, 3, links))
    assert len(network.workers(1)) == 6
    assert len(network.workers(2)) == 12
    with pytest.raises(TopologyError, match=names("module 2", "2 ToRs", "module 1", "3")):
        PSNet(modules=(small, Module(ecs_ports=4, tor_downlinks=2, tor_uplinks=2)), wiring=Wiring(2, 3, links))


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ({"ecs_ports": 3, "tor_downlinks": 4, "tor_uplinks": 2}, "not one ToR fits"),
        ({"ecs_ports": 4, "tor_downlinks": 4, "tor_uplinks": 2, "servers": 2}, "3 uplinks"),
        ({"ecs_ports": 7, "tor_downlinks": 4, "tor_uplinks": 2, "workers": 5}, "1 ToRs with 4 downlinks"),
        ({"ecs_ports": 300, "tor_downlinks": 300, "tor_uplinks": 2}, "300 workers per ToR"),
        ({"ecs_ports": 4, "tor_downlinks": 2, "tor_uplinks": 2, "server_ratio": 0.0}, "server_ratio"),
    ],
)
def test_module__rejects_numbers_that_do_not_fit(numbers: dict[str, int], message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        Module(**numbers)
