"""The cluster file: cross-references, ports and pipelines."""

from __future__ import annotations

import pytest

from mlt.planners._shared.documents import InputError
from mlt.planners.cluster import Cluster, Host, Job, Link, Switch, dump_cluster, parse_cluster


def leaf_spine(*, hosts: int = 5, pipelines: int = 2) -> Cluster:
    return Cluster(
        hosts=tuple(Host(name=f"h{i}", bandwidth=10e9) for i in range(hosts)),
        switches=(
            Switch(name="leaf0", pipelines=pipelines, aggregates=True),
            Switch(name="spine0", tier=2),
            Switch(name="spine1", tier=2),
        ),
        links=(
            *(Link(a=f"h{i}", b="leaf0", bandwidth=10e9) for i in range(hosts)),
            Link(a="leaf0", b="spine0", bandwidth=40e9),
            Link(a="leaf0", b="spine1", bandwidth=40e9),
        ),
        jobs=(Job(name="j", workers=("h0", "h1"), servers=("h2",), model_size=97e6),),
    )


def test_cluster__numbers_ports_in_file_order() -> None:
    cluster = leaf_spine()
    assert [cluster.port(link, "leaf0") for link in cluster.links_of["leaf0"]] == list(range(7))
    assert [cluster.port(link, "spine0") for link in cluster.links_of["spine0"]] == [0]


def test_cluster__numbering_leaves_stated_ports_alone() -> None:
    cluster = Cluster(
        hosts=(Host(name="h0", bandwidth=1), Host(name="h1", bandwidth=1)),
        switches=(Switch(name="s"),),
        links=(Link(a="h0", b="s", bandwidth=1), Link(a="h1", b="s", bandwidth=1, b_port=0)),
    )
    assert [link.b_port for link in cluster.links] == [1, 0]


def test_port_pipelines__each_class_is_split_in_order() -> None:
    # five host ports over two pipelines: 3 + 2; the two spine ports: 1 + 1
    assert leaf_spine().port_pipelines("leaf0") == {0: 0, 1: 0, 2: 0, 3: 1, 4: 1, 5: 0, 6: 1}


def test_cluster__round_trips_through_yaml() -> None:
    cluster = leaf_spine()
    again = parse_cluster(dump_cluster(cluster))
    assert again == cluster
    assert again.digest() == cluster.digest()


def test_digest__changes_with_the_contents() -> None:
    assert leaf_spine(hosts=5).digest() != leaf_spine(hosts=6).digest()


@pytest.mark.parametrize(
    ("links", "words"),
    [
        ((Link(a="h0", b="h0", bandwidth=1),), "to itself"),
        ((Link(a="h0", b="s", bandwidth=1, b_port=3), Link(a="h1", b="s", bandwidth=1, b_port=3)), "already taken"),
        ((Link(a="h0", b="s", bandwidth=1, b_port=9),), r"connected ports \[9\]"),
    ],
)
def test_cluster__rejects_impossible_cabling(links: tuple[Link, ...], words: str) -> None:
    with pytest.raises(InputError, match=words):
        Cluster(
            hosts=(Host(name="h0", bandwidth=1), Host(name="h1", bandwidth=1)),
            switches=(Switch(name="s", port_pipelines={0: 0, 3: 0}),),
            links=links,
        )


def test_cluster__rejects_a_pipeline_that_does_not_exist() -> None:
    with pytest.raises(InputError, match="expected 0 to 1"):
        Cluster(hosts=(Host(name="h0", bandwidth=1),), switches=(Switch(name="s", pipelines=2, port_pipelines={0: 2}),))


def test_cluster__a_job_may_share_a_host_with_another_job() -> None:
    hosts = tuple(Host(name=f"h{i}", bandwidth=1) for i in range(3))
    jobs = tuple(Job(name=name, workers=("h0", "h1"), servers=("h2",), model_size=1) for name in ("a", "b"))
    assert len(Cluster(hosts=hosts, jobs=jobs).jobs) == 2
    with pytest.raises(InputError, match=r"jobs\[1\]\.name"):
        Cluster(hosts=hosts, jobs=(jobs[0], jobs[0]))
