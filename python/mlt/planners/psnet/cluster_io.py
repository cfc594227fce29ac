"""A PSNet as a cluster file, which every planner and the simulator read: its cables, with these ports.

* circuit switch: worker w (from 0) on port w; downlink n of ToR t on port W' + t * M_d + n;
* ToR: downlinks on ports 0 .. M_d - 1, server s on M_d + s, the SuperNode switch on M_d + M_u - 1;
* SuperNode switch: ToR t on port t, inter-module links on R .. 2 R - 1 in the order of the wiring;
* server: the NIC to ToR t is port t.

The inverse, from a cluster file to a PSNet, is ``cluster_psnet``.
"""

from __future__ import annotations

from collections.abc import Sequence

from mlt.planners.cluster import Cluster, Host, Job, Link, Switch
from mlt.planners.psnet.addressing import address_table
from mlt.planners.psnet.jobs import PlacedJob, check_jobs
from mlt.planners.psnet.psnet import PSNet, ecs_name, supernode_name, tor_name


def psnet_cluster(network: PSNet, jobs: Sequence[PlacedJob] = ()) -> Cluster:
    """A PSNet and the jobs placed on it as a cluster. A server's bandwidth is the sum over its R NICs."""
    check_jobs(network, jobs)
    addresses = {node: str(address) for node, address in address_table(network).items()}
    hosts: list[Host] = []
    switches: list[Switch] = []
    links: list[Link] = []
    for mid in network.mids:
        module = network.module(mid)
        for server in network.servers(mid):
            total = network.tors * module.server_bits_per_second
            hosts.append(Host(name=server, bandwidth=total, module=mid, address=addresses[server]))
        for worker in network.workers(mid):
            rate = module.worker_bits_per_second
            hosts.append(Host(name=worker, bandwidth=rate, gpus=1, module=mid, address=addresses[worker]))
        switches.append(Switch(name=ecs_name(mid), kind="circuit", module=mid))
        for t in range(network.tors):
            tor = tor_name(mid, t)
            switches.append(Switch(name=tor, module=mid, address=addresses[tor]))
        supernode = supernode_name(mid)
        switches.append(Switch(name=supernode, tier=2, module=mid, address=addresses[supernode]))
        links += module_links(network, mid)
    ports = dict.fromkeys(network.mids, network.tors)
    for a, b in network.wiring.links:
        link = Link(
            a=supernode_name(a),
            b=supernode_name(b),
            bandwidth=network.inter_rate,
            delay=network.latency_seconds,
            a_port=ports[a],
            b_port=ports[b],
        )
        links.append(link)
        ports[a] += 1
        ports[b] += 1
    return Cluster(
        name="psnet",
        hosts=tuple(hosts),
        switches=tuple(switches),
        links=tuple(links),
        jobs=tuple(cluster_job(network, job) for job in jobs),
    )


def cluster_job(network: PSNet, job: PlacedJob) -> Job:
    """A placed job with the network's own host names."""
    return Job(
        name=job.name,
        workers=tuple(network.worker_name(mid, w) for mid, members in job.workers.items() for w in members),
        servers=tuple(network.server_name(mid, s) for mid, members in job.servers.items() for s in members),
        model_size=job.size_bytes,
    )


def module_links(network: PSNet, mid: int) -> list[Link]:
    """The cables inside one module, with their ports."""
    module = network.module(mid)
    worker_rate, rate, delay = module.worker_bits_per_second, module.server_bits_per_second, network.latency_seconds
    ecs, down = ecs_name(mid), module.tor_downlinks
    links = [
        Link(a=worker, b=ecs, bandwidth=worker_rate, delay=delay, a_port=0, b_port=w)
        for w, worker in enumerate(network.workers(mid))
    ]
    for t in range(network.tors):
        tor = tor_name(mid, t)
        for n in range(down):
            port = module.ecs_ports + t * down + n
            links.append(Link(a=ecs, b=tor, bandwidth=worker_rate, delay=delay, a_port=port, b_port=n))
        for s, server in enumerate(network.servers(mid)):
            links.append(Link(a=tor, b=server, bandwidth=rate, delay=delay, a_port=down + s, b_port=t))
        last = down + module.tor_uplinks - 1
        links.append(Link(a=tor, b=supernode_name(mid), bandwidth=rate, delay=delay, a_port=last, b_port=t))
    return links
