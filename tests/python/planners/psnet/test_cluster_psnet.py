from __future__ import annotations

import random

import pytest
from checks import names
from hypothesis import given, settings
from hypothesis import strategies as st

from mlt.planners._shared.documents import InputError
from mlt.planners.cluster import Cluster, Link, dump_cluster, parse_cluster
from mlt.planners.psnet.clos import fat_tree
from mlt.planners.psnet.cluster_io import psnet_cluster
from mlt.planners.psnet.cluster_psnet import read_psnet
from mlt.planners.psnet.jobs import PlacedJob
from mlt.planners.psnet.psnet import Module, build_psnet

MODULE = Module(ecs_ports=12, tor_downlinks=4, tor_uplinks=4, workers=10, server_ratio=2.0)
JOB = PlacedJob(name="job", size_bytes=97e6, workers={1: (0, 1, 2), 2: (3,)}, servers={2: (0, 2)})


def renamed(cluster: Cluster, seed: int) -> Cluster:
    """The same cluster under meaningless names and in another order of hosts and links."""
    rng = random.Random(seed)
    names = list(cluster.nodes)
    rng.shuffle(names)
    new = {name: f"n{i}" for i, name in enumerate(names)}
    shuffled_hosts, shuffled_links = list(cluster.hosts), list(cluster.links)
    rng.shuffle(shuffled_hosts)
    rng.shuffle(shuffled_links)
    return Cluster(
        hosts=tuple(h.model_copy(update={"name": new[h.name]}) for h in shuffled_hosts),
        switches=tuple(s.model_copy(update={"name": new[s.name]}) for s in cluster.switches),
        links=tuple(link.model_copy(update={"a": new[link.a], "b": new[link.b]}) for link in shuffled_links),
        jobs=tuple(
            job.model_copy(
                update={
                    "workers": tuple(new[n] for n in job.workers),
                    "servers": tuple(new[n] for n in job.servers),
                }
            )
            for job in cluster.jobs
        ),
    )


@settings(deadline=None, max_examples=25)
@given(modules=st.integers(1, 6), seed=st.integers(0, 99))
def test_read_psnet__gives_back_what_was_written_under_any_names(modules: int, seed: int) -> None:
    network = build_psnet(MODULE, modules=modules, seed=seed)
    cluster = psnet_cluster(network)
    read = read_psnet(parse_cluster(dump_cluster(cluster)))
    assert read.network.wiring == network.wiring
    assert [
        (m.tors, m.worker_count, m.server_count, m.worker_bits_per_second, m.server_bits_per_second)
        for m in read.network.modules
    ] == [(3, 10, 3, MODULE.worker_bits_per_second, MODULE.server_bits_per_second)] * modules
    assert [read.worker_names[1, w] for w in range(10)] == network.workers(1)
    other = read_psnet(renamed(cluster, seed)).network
    assert (other.wiring, other.modules) == (read.network.wiring, read.network.modules)


def test_psnet_cluster__ports_of_the_circuit_switch_are_used_once() -> None:
    network = build_psnet(MODULE, modules=2)
    cluster = psnet_cluster(network)  # Cluster itself rejects a port that is used twice
    read = read_psnet(cluster)
    ports = [read.worker_ports[1, w] for w in range(10)] + [
        read.tor_ports[1, (t, n)] for t in range(3) for n in range(4)
    ]
    assert sorted(ports) == [*range(10), *range(12, 24)]


def test_placed__reads_a_job_back() -> None:
    network = build_psnet(MODULE, modules=2)
    cluster = psnet_cluster(network, [JOB])
    assert read_psnet(cluster).placed(cluster.jobs[0]) == JOB


def changed(cluster: Cluster, **changes: object) -> Cluster:
    fields = {name: getattr(cluster, name) for name in ("hosts", "switches", "links", "jobs")}
    return Cluster(**{**fields, **changes})  # type: ignore[arg-type]


def without(cluster: Cluster, a: str, b: str) -> Cluster:
    return changed(cluster, links=tuple(link for link in cluster.links if {link.a, link.b} != {a, b}))


def test_read_psnet__names_the_entry_that_does_not_fit() -> None:
    whole = psnet_cluster(build_psnet(MODULE, modules=2))
    extra = Link(a="worker-1-1-1", b="supernode-1", bandwidth=1e9)
    slow = tuple(
        link.model_copy(update={"bandwidth": 1e9}) if {link.a, link.b} == {"tor-1-1", "server-1-1"} else link
        for link in whole.links
    )
    two = tuple(s.model_copy(update={"module": 1}) if s.name == "ecs-2" else s for s in whole.switches)
    for broken, message in (
        (fat_tree(4), "no switch of kind 'circuit'"),
        (without(whole, "tor-1-1", "server-1-1"), r"'server-1-1' is linked to \['tor-1-2', 'tor-1-3'\]"),
        (without(whole, "tor-1-2", "supernode-1"), "'supernode-1' is linked to"),
        (changed(whole, links=(*whole.links, extra)), "worker 'worker-1-1-1' has 2 links"),
        (changed(whole, links=slow), "uplink links of one module must have one bandwidth"),
        (changed(whole, switches=two), "module 1 has two circuit switches, 'ecs-1' and this one"),
    ):
        with pytest.raises(InputError, match=message):
            read_psnet(broken)


def test_placed__rejects_hosts_of_the_wrong_kind() -> None:
    cluster = psnet_cluster(build_psnet(MODULE, modules=2), [JOB])
    named = read_psnet(cluster)
    job = cluster.jobs[0]
    with pytest.raises(InputError, match=names("'server-1-1'", "circuit")):
        named.placed(job.model_copy(update={"workers": ("server-1-1",)}))
    with pytest.raises(InputError, match="job 'job' has no servers"):
        named.placed(job.model_copy(update={"servers": ()}))
