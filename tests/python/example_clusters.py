"""Clusters that tests of several planners plan."""

from __future__ import annotations

from mlt.planners.byteps.load_assignment import plan_assignment
from mlt.planners.cluster import Cluster, Host, Job, Link, Switch
from mlt.planners.plan import Assignment


def fabric(*, aggregates: bool = True, strong: int = 0, model_size: float = 100e6) -> tuple[Cluster, Job]:
    """Four racks of four 10 Gbit/s workers (``strong`` of them 40), one server, two spines, all switches alike."""
    hosts = [Host(name=f"w{i}", bandwidth=(40e9 if i < strong else 10e9), cpu_cores=32) for i in range(16)]
    hosts.append(Host(name="ps", bandwidth=10e9))
    switches = [Switch(name=f"leaf{i}", aggregates=aggregates) for i in range(4)]
    switches += [Switch(name=f"spine{i}", tier=2, aggregates=aggregates) for i in range(2)]
    links = [Link(a=f"w{i}", b=f"leaf{i // 4}", bandwidth=40e9) for i in range(16)]
    links += [Link(a="ps", b="leaf3", bandwidth=10e9)]
    links += [Link(a=f"leaf{i}", b=f"spine{j}", bandwidth=40e9) for i in range(4) for j in range(2)]
    job = Job(name="j", workers=tuple(f"w{i}" for i in range(16)), servers=("ps",), model_size=model_size)
    return Cluster(hosts=tuple(hosts), switches=tuple(switches), links=tuple(links), jobs=(job,)), job


def assignment(workers: int, servers: int) -> Assignment:
    """Partitions on hosts that are all alike."""
    hosts = tuple(Host(name=f"h{i}", bandwidth=1e10) for i in range(workers + servers))
    names = tuple(host.name for host in hosts)
    job = Job(name="j", workers=names[:workers], servers=names[workers:], model_size=1e9)
    return plan_assignment(Cluster(hosts=hosts, jobs=(job,)), job)
