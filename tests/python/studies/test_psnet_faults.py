from __future__ import annotations

from pathlib import Path

import networkx as nx
import pytest
from checks import assert_names, names
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from mlt.planners.cluster import dump_cluster
from mlt.planners.psnet.checks import TopologyError
from mlt.planners.psnet.cluster_io import psnet_cluster
from mlt.planners.psnet.psnet import Module, PSNet, build_psnet
from studies.psnet.__main__ import app
from studies.psnet.faults import (
    Element,
    degraded_graph,
    reach,
    repair,
    unreached,
)
from studies.psnet.survey import elements, survey

SPARE = Module(ecs_ports=12, tor_downlinks=4, tor_uplinks=3, workers=8)  # 8 workers on 12 ports
FULL = Module(ecs_ports=12, tor_downlinks=4, tor_uplinks=3)


def network(module: Module = SPARE, *, modules: int = 4) -> PSNet:
    return build_psnet(module, modules=modules, seed=1)


def test_reach__of_an_unharmed_network_is_everything() -> None:
    result = reach(network(), [])
    assert result.as_is == result.repaired == result.any_way == result.pairs == 4 * 8 * 2
    assert result.modules_joined == result.module_pairs == 6
    assert result.circuits_moved == result.stranded == 0


def test_reach__a_dead_tor_is_repaired_when_there_are_spare_ports() -> None:
    result = reach(network(), ["tor-1-1"])
    assert result.pairs - result.as_is == 3 * 2  # its three workers, two servers
    assert result.repaired == result.pairs
    # 3 workers had to move; 2 + 3 + 3 became 4 + 4
    assert (result.circuits_moved, result.stranded) == (3, 0)


def test_reach__a_dead_tor_of_a_full_module_strands_its_workers() -> None:
    result = reach(network(FULL), ["tor-2-3"])
    assert result.stranded == 4
    assert result.pairs - result.repaired == 4 * 2 == result.pairs - result.any_way


def test_reach__a_lost_server_link_is_routed_round() -> None:
    link: Element = (
        ("tor-1-1", "server-1-1", 0)
        if ("tor-1-1", "server-1-1", 0) in elements(network(), "server-link")
        else ("server-1-1", "tor-1-1", 0)
    )
    spare, full = reach(network(), [link]), reach(network(FULL), [link])
    assert spare.repaired == spare.pairs
    assert full.repaired == full.pairs - 4  # no free port: four workers lose their direct way to one server
    assert full.any_way == full.pairs  # but not the one through the SuperNode switch


def test_reach__the_circuit_switch_is_a_single_point_of_failure() -> None:
    result = reach(network(), ["ecs-3"])
    assert result.pairs - result.any_way == 8 * 2


def test_reach__a_lost_server_takes_only_its_own_pairs() -> None:
    result = reach(network(), ["server-1-1"])
    assert result.as_is == result.repaired == result.pairs - 8


@given(failures=st.integers(0, 2), seed=st.integers(0, 20))
@settings(deadline=None, max_examples=20)
def test_survey__fewer_than_r_trunks_never_part_two_modules(failures: int, seed: int) -> None:
    net = build_psnet(SPARE, modules=6, seed=seed)
    result = survey(net, "trunk", failures, draws=40)
    assert result.modules_joined == (1.0, 1.0)


def test_survey__r_trunks_can_cut_a_module_off() -> None:
    result = survey(network(), "trunk", 3, draws=1000)
    assert result.exhaustive
    assert result.modules_joined[1] == pytest.approx(0.5)  # one of four modules alone: 3 of 6 pairs left


@settings(deadline=None, max_examples=40)
@given(data=st.data(), full=st.booleans())
def test_reach__repair_never_loses_and_detours_never_lose(data: st.DataObject, full: bool) -> None:
    net = network(FULL if full else SPARE, modules=3)
    pool = [e for kind in ("tor", "server", "link", "server-link", "supernode") for e in elements(net, kind)]  # type: ignore[arg-type]
    failed = data.draw(st.lists(st.sampled_from(pool), max_size=6, unique=True))
    result = reach(net, failed)
    assert result.repaired <= result.any_way <= result.pairs
    assert sum(len(servers) for servers in unreached(net, failed).values()) == result.pairs - result.any_way
    assert result.as_is <= result.repaired
    plans = repair(net, failed)
    graph = degraded_graph(net, failed, circuits={mid: plan.circuits for mid, plan in plans.items()})
    for mid, plan in plans.items():
        for worker, circuit in enumerate(plan.circuits.of):
            name = net.worker_name(mid, worker)
            assert (circuit is not None) == (name in graph and graph.degree(name) == 1)


def test_repair__stays_where_every_tor_has_lost_another_server() -> None:
    net = network(FULL, modules=1)
    links = [e for e in elements(net, "server-link") if isinstance(e, tuple)]
    failed = [e for e in links if {e[0], e[1]} in ({"tor-1-1", "server-1-1"}, {"tor-1-2", "server-1-2"})]
    failed += [e for e in links if "tor-1-3" in e[:2]]
    result = reach(net, failed)
    assert result.as_is == result.repaired == 4 + 4
    assert result.circuits_moved == 0


def test_reach__any_route_agrees_with_paths_in_the_graph() -> None:
    net = network(FULL, modules=3)
    failed: list[Element] = ["tor-1-1", ("tor-2-1", "supernode-2", 0)]
    if failed[1] not in elements(net, "link"):
        failed[1] = ("supernode-2", "tor-2-1", 0)
    plans = repair(net, failed)
    graph = degraded_graph(net, failed, circuits={mid: plan.circuits for mid, plan in plans.items()})
    pairs = sum(
        worker in graph and server in graph and nx.has_path(graph, worker, server)
        for mid in net.mids
        for worker in net.workers(mid)
        for server in net.servers(mid)
    )
    assert reach(net, failed).any_way == pairs


def test_survey__is_the_same_for_the_same_seed() -> None:
    net = network(FULL, modules=5)
    assert survey(net, "link", 4, draws=10, seed=3) == survey(net, "link", 4, draws=10, seed=3)
    assert survey(net, "link", 4, draws=10, seed=3) != survey(net, "link", 4, draws=10, seed=4)


def test_elements__counts_every_cable_once() -> None:
    net = network(modules=4)
    kinds = {kind: len(elements(net, kind)) for kind in ("server-link", "tor-port", "worker-link", "trunk")}  # type: ignore[arg-type]
    assert kinds == {"server-link": 4 * 2 * 3, "tor-port": 4 * 12, "worker-link": 4 * 8, "trunk": 6}
    assert len(elements(net, "link")) == sum(kinds.values()) + 4 * 3  # and ToR to SuperNode switch


def test_faults__reject_unknown_parts() -> None:
    with pytest.raises(TopologyError, match="no node 'tor-9-1'"):
        reach(network(), ["tor-9-1"])
    with pytest.raises(TopologyError, match=names("cable 5", "ecs-1", "tor-1-1")):
        reach(network(), [("ecs-1", "tor-1-1", 5)])
    with pytest.raises(TopologyError, match=names("7 failures", "'trunk'", "6")):
        survey(network(), "trunk", 7)
    with pytest.raises(TopologyError, match="'psu'"):
        elements(network(), "psu")  # type: ignore[arg-type]


def test_reach_command__names_the_lost_peer(tmp_path: Path) -> None:
    two_servers = Module(ecs_ports=12, tor_downlinks=4, tor_uplinks=4, servers=2)
    file = tmp_path / "net.yaml"
    file.write_text(dump_cluster(psnet_cluster(build_psnet(two_servers, modules=2))))

    def run(*failed: str, code: int = 0) -> str:
        result = CliRunner().invoke(
            app, ["reach", str(file), *(word for part in failed for word in ("--failed", part))]
        )
        assert result.exit_code == code, result.output
        return result.output

    lines = run("server-1-1", "worker-2-1-1,ecs-2").splitlines()
    assert lines[0].startswith("of 48 worker-server pairs, directly: 34 by the old circuits, 34 by new ones (0 moved)")
    lost = [line for line in lines if "no longer reaches" in line]
    assert len(lost) == 12 + 1
    assert_names(lost[-1], "worker-2-1-1", "server-2-1, server-2-2")
    assert "no node is named 'tor-9'" in run("tor-9", code=2)
    assert "no cable 7 between" in run("tor-1-1,ecs-1,7", code=2)
    assert "--failed" in run(code=2)
