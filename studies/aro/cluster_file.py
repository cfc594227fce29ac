"""A drawn instance as a cluster file, for ``mlt plan`` and the simulator."""

from __future__ import annotations

from mlt.planners.aro.instance import Instance
from mlt.planners.cluster import Cluster, Host, Job, Link, Switch

_GIGA = 1e9


def cluster_of(instance: Instance, *, name: str = "cluster", model_size: int = 100_000_000) -> Cluster:
    """The instance as a cluster file, with every port-to-pipeline map written out."""
    links = tuple(
        Link(
            a=link.a,
            b=link.b,
            bandwidth=link.gbps * _GIGA,
            a_port=_port(instance, link.a, link.b),
            b_port=_port(instance, link.b, link.a),
        )
        for link in instance.links
    )
    return Cluster(
        name=name,
        hosts=tuple(
            Host(name=host, bandwidth=instance.capacity[host, instance.leaf_of[host]] * _GIGA)
            for host in instance.hosts
        ),
        switches=tuple(
            Switch(
                name=switch.name,
                tier=switch.tier + 1,
                aggregates=switch.programmable,
                pipelines=switch.pipelines,
                port_pipelines={port.number: port.pipeline for port in switch.ports},
            )
            for switch in instance.switches
        ),
        links=links,
        jobs=tuple(
            Job(
                name=job.name,
                workers=job.workers,
                servers=tuple(task.ps for task in job.tasks),
                model_size=model_size,
            )
            for job in instance.jobs
        ),
    )


def _port(instance: Instance, node: str, peer: str) -> int:
    switch = instance.switch.get(node)
    return 0 if switch is None else switch.port_number[peer]
