from __future__ import annotations

from collections import Counter

import pytest
from checks import names
from hypothesis import given, settings
from hypothesis import strategies as st

from mlt.planners._shared.documents import InputError
from mlt.planners.psnet.cluster_io import module_links, psnet_cluster
from mlt.planners.psnet.cluster_psnet import read_psnet
from mlt.planners.psnet.growth import grow_cluster, grow_psnet, trunk_bytes
from mlt.planners.psnet.jobs import JobRequest
from mlt.planners.psnet.placement import place_jobs
from mlt.planners.psnet.plan_section import plan_topology
from mlt.planners.psnet.psnet import Module, PSNet, build_psnet

MODULE = Module(ecs_ports=16, tor_downlinks=4, tor_uplinks=4)  # R = 4


def inside(network: PSNet, mid: int) -> tuple[object, ...]:
    cluster = psnet_cluster(network)
    parts = [part for part in (*cluster.hosts, *cluster.switches) if part.module == mid]
    return parts, module_links(network, mid)


@settings(deadline=None, max_examples=25)
@given(modules=st.integers(1, 9), seed=st.integers(0, 99))
def test_grow_psnet__existing_modules_stay_as_they_are(modules: int, seed: int) -> None:
    before = build_psnet(MODULE, modules=modules, seed=seed)
    growth = grow_psnet(before, seed=seed)
    assert len(growth.wiring.removed) == (2 if modules > 1 else 0)  # R / 2
    for mid in before.mids:
        assert inside(before, mid) == inside(growth.network, mid)
    cut = Counter(before.wiring.links) - Counter(growth.network.wiring.links)
    assert sum(cut.values()) == len(growth.wiring.removed)


def test_grow_psnet__spares_the_trunks_that_carry_most() -> None:
    network = build_psnet(MODULE, modules=8, seed=2)
    heavy = {pair: 1e9 for pair in network.wiring.links if 1 in pair}
    growth = grow_psnet(network, job_bytes={"job": heavy})
    assert growth.disturbed_jobs == ()
    everywhere = dict.fromkeys(network.wiring.links, 5.0)
    forced = grow_psnet(network, job_bytes={"job": everywhere})
    assert forced.disturbed_jobs == ("job",)
    assert len(forced.wiring.removed) == 2


def test_grow_cluster__moves_only_the_cables_it_says() -> None:
    network = build_psnet(MODULE, modules=5, seed=3)
    requests = [
        JobRequest(name="inside", workers=10, servers=2, size_bytes=97e6),
        JobRequest(name="across", workers=25, servers=4, size_bytes=528e6),
    ]
    cluster = psnet_cluster(network, place_jobs(network, requests).jobs)
    grown = grow_cluster(cluster, seed=1)
    kept = [link for link in cluster.links if link not in grown.unplug]
    assert len(grown.unplug) == 2
    assert len(grown.plug) == 4
    assert list(grown.cluster.links[: len(kept)]) == kept
    assert grown.cluster.hosts[: len(cluster.hosts)] == cluster.hosts
    assert grown.cluster.jobs == cluster.jobs
    assert "inside" not in grown.growth.disturbed_jobs
    read = read_psnet(grown.cluster).network
    assert read.wiring == grown.growth.network.wiring
    assert read.wiring.edge_connectivity() == 4
    freed = Counter((end, cluster.port(link, end)) for link in grown.unplug for end in (link.a, link.b))
    plugged = Counter((link.a, link.a_port) for link in grown.plug)
    assert plugged == freed


def test_grow_cluster__jobs_inside_a_module_keep_their_plan() -> None:
    network = build_psnet(MODULE, modules=4, seed=3)
    requests = [JobRequest(name=f"job-{n}", workers=5, servers=1, size_bytes=97e6) for n in range(6)]
    cluster = psnet_cluster(network, place_jobs(network, requests).jobs)
    before, after = plan_topology(cluster), plan_topology(grow_cluster(cluster).cluster)
    assert before.circuits == after.circuits
    assert before.seconds == after.seconds


def test_grow_cluster__can_go_on() -> None:
    cluster = psnet_cluster(build_psnet(Module(ecs_ports=6, tor_downlinks=2, tor_uplinks=2), modules=1))
    for modules in range(2, 9):
        cluster = grow_cluster(cluster, seed=modules).cluster
        wiring = read_psnet(cluster).network.wiring
        assert wiring.modules == modules
        assert sum(wiring.free_ports.values()) == (3 * modules) % 2


def test_grow_cluster__rejects_taken_names() -> None:
    cluster = psnet_cluster(build_psnet(MODULE, modules=2))
    hosts = tuple(
        host.model_copy(update={"name": "server-3-1"}) if host.name == "server-1-1" else host for host in cluster.hosts
    )
    links = tuple(
        link.model_copy(update={"b": "server-3-1"}) if link.b == "server-1-1" else link for link in cluster.links
    )
    with pytest.raises(InputError, match=names("'server-3-1'", "taken")):
        grow_cluster(type(cluster)(hosts=hosts, switches=cluster.switches, links=links))


def test_trunk_bytes__counts_push_and_pull_of_what_crosses() -> None:
    network = build_psnet(MODULE, modules=2)
    cluster = psnet_cluster(
        network, place_jobs(network, [JobRequest(name="big", workers=20, servers=4, size_bytes=1e8)]).jobs
    )
    named = read_psnet(cluster)
    job = named.placed(cluster.jobs[0])
    crossing = sum(job.sent_bytes(a, b) for a in job.workers for b in job.servers if a != b)
    assert trunk_bytes(cluster, named)["big"][1, 2] == pytest.approx(2 * crossing)
