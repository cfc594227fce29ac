"""Alternatives: both NICs and links limit them."""

from __future__ import annotations

import pytest

from mlt.planners.auto.alternatives import Alternative, Skipped, aleph, byteps, parameter_server, ring
from mlt.planners.cluster import Cluster, Host, Job, Link, Switch


def racks(*, uplink: float, servers: int = 1, rate: float = 10e9) -> tuple[Cluster, Job]:
    """Two racks of four workers; servers in the second; one spine."""
    hosts = [Host(name=f"w{i}", bandwidth=rate) for i in range(8)]
    hosts += [Host(name=f"ps{i}", bandwidth=4 * rate) for i in range(servers)]
    links = [Link(a=f"w{i}", b=f"leaf{i // 4}", bandwidth=rate) for i in range(8)]
    links += [Link(a=f"ps{i}", b="leaf1", bandwidth=4 * rate) for i in range(servers)]
    links += [Link(a=f"leaf{i}", b="spine", bandwidth=uplink) for i in range(2)]
    switches = (Switch(name="leaf0"), Switch(name="leaf1"), Switch(name="spine", tier=2))
    names = tuple(host.name for host in hosts)
    job = Job(name="j", workers=names[:8], servers=names[8:], model_size=1e9)
    return Cluster(hosts=tuple(hosts), switches=switches, links=tuple(links), jobs=(job,)), job


def test_wide_links__nics_decide() -> None:
    cluster, job = racks(uplink=400e9)
    found = parameter_server(cluster, job)
    assert isinstance(found, Alternative)
    assert found.time == pytest.approx(8 * 8e9 / 40e9)
    assert "servers' bandwidth" in found.reason
    assert ring(cluster, job).time == pytest.approx(2 * 7 / 8 * 8e9 / 10e9)


def test_narrow_uplink__the_link_decides_and_is_named() -> None:
    cluster, job = racks(uplink=5e9)
    found = parameter_server(cluster, job)
    assert isinstance(found, Alternative)
    assert found.time == pytest.approx(4 * 8e9 / 5e9)  # four workers of the first rack
    assert "link leaf0 to spine is busiest" in found.reason or "link spine to leaf1 is busiest" in found.reason


def test_byteps__results_flow_back_on_the_same_nics() -> None:
    # The link model must agree with equation 3 where only the hosts' own links bind.
    cluster, job = racks(uplink=400e9)
    assert byteps(cluster, job).time == pytest.approx(byteps(Cluster(hosts=cluster.hosts, jobs=(job,)), job).time)


def test_aleph__tree_on_links_agrees_with_its_model() -> None:
    cluster, job = racks(uplink=400e9)
    with_links, without = (
        aleph(c, job, method="fastest") for c in (cluster, Cluster(hosts=cluster.hosts, jobs=(job,)))
    )
    assert isinstance(with_links, Alternative)
    assert isinstance(without, Alternative)
    assert with_links.time == pytest.approx(without.time)


def test_servers_missing__some_alternatives_are_skipped_with_a_reason() -> None:
    cluster, job = racks(uplink=400e9, servers=0)
    assert parameter_server(cluster, job) == Skipped("parameter server", "the job has no servers")
    assert isinstance(aleph(cluster, job, method="m-wcha"), Skipped)
    assert byteps(cluster, job).time == pytest.approx(ring(cluster, job).time)
