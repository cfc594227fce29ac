"""Growth of the PSNet in a cluster file by one module: cables to unplug, cables to plug in, and the new file.

Source: PSNet, section 3.1 (fine-grained expansion) and 3.4 (growth does not affect tasks inside existing modules, only
tasks across modules). Only links between SuperNode switches change: floor(R/2) are cut, each replaced by two links to
the new module (``wiring.grow_wiring``). Among all such choices, the one with the fewest bytes of running cross-module
jobs on the cut links is made. All other entries of the file stay. A cut frees two ports, which its two new links use,
so only one end of each cable moves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

from mlt.planners._shared.documents import InputError, Problem
from mlt.planners.cluster import Cluster, Link
from mlt.planners.psnet.cluster_io import module_links, psnet_cluster
from mlt.planners.psnet.cluster_psnet import NamedPSNet, read_psnet
from mlt.planners.psnet.psnet import PSNet, supernode_name
from mlt.planners.psnet.routing import demands, route_jobs
from mlt.planners.psnet.wiring import Growth, Pair, Wiring, grow_wiring


@dataclass(frozen=True)
class NetworkGrowth:
    """The grown network, the cables that changed, and the jobs that had traffic on a cut link."""

    network: PSNet
    wiring: Growth
    disturbed_jobs: tuple[str, ...]


@dataclass(frozen=True)
class ClusterGrowth:
    """The new file and the changed cables, by the file's names."""

    cluster: Cluster
    unplug: tuple[Link, ...]
    plug: tuple[Link, ...]
    growth: NetworkGrowth


def grow_psnet(
    network: PSNet, *, seed: int = 0, job_bytes: Mapping[str, Mapping[Pair, float]] | None = None
) -> NetworkGrowth:
    """Add a copy of module 1.

    job_bytes: job -> (low, high) module pair -> bytes per iteration on the trunk between them, both directions; jobs
        inside one module have none and cannot be disturbed.
    """
    trunks = network.wiring.trunks()
    loads = job_bytes or {}
    per_link: dict[Pair, float] = {}
    for of_job in loads.values():
        for pair, amount in of_job.items():
            per_link[pair] = per_link.get(pair, 0.0) + amount / trunks[pair]
    growth = grow_wiring(network.wiring, seed=seed, disturbance=per_link)
    grown = replace(network, modules=(*network.modules, network.modules[0]), wiring=growth.wiring)
    cut = set(growth.removed)
    disturbed = tuple(name for name, of_job in loads.items() if any(of_job.get(pair, 0.0) > 0 for pair in cut))
    return NetworkGrowth(grown, growth, disturbed)


def grow_cluster(cluster: Cluster, *, seed: int = 0) -> ClusterGrowth:
    """Add a copy of the first module to the PSNet of ``cluster``, cutting the links that affect its jobs least.

    Raises:
        InputError: the cluster is not a PSNet, or one of the new names is in use.
    """
    named = read_psnet(cluster)
    growth = grow_psnet(named.network, seed=seed, job_bytes=trunk_bytes(cluster, named))
    new = len(growth.network.modules)
    fresh = _new_module(growth.network, number=max(named.file_module.values()) + 1)
    taken = {*cluster.nodes} & {*fresh.nodes}
    if taken:
        message = (
            f"the new module would use the name {min(taken)!r}, which is taken; expected names of other modules only"
        )
        raise InputError([Problem(where=("hosts",), message=message)])
    unplug = _cut(cluster, named, growth)
    plug = _plug(cluster, named, growth, unplug, fresh, supernode_name(new))
    kept = (link for link in cluster.links if link not in unplug)  # no two are equal: each has its ports
    grown = Cluster(
        version=1,
        name=cluster.name,
        hosts=(*cluster.hosts, *fresh.hosts),
        switches=(*cluster.switches, *fresh.switches),
        links=(*kept, *fresh.links, *plug),
        jobs=cluster.jobs,
    )
    return ClusterGrowth(grown, unplug, plug, growth)


def trunk_bytes(cluster: Cluster, named: NamedPSNet) -> dict[str, dict[Pair, float]]:
    """Bytes per iteration that every cross-module job of the file has on each trunk, push and pull together."""
    jobs = [named.placed(job) for job in cluster.jobs]
    jobs = [job for job in jobs if len(job.modules) > 1]
    if not jobs:
        return {}
    routes = route_jobs(named.network, jobs)
    out: dict[str, dict[Pair, float]] = {}
    for job in jobs:
        loads: dict[Pair, float] = {}
        for (a, b), amount in demands([job]).items():
            for path, share in routes.paths[a, b].items():
                for i, j in pairwise(path):
                    pair = (min(i, j), max(i, j))
                    loads[pair] = loads.get(pair, 0.0) + 2 * amount * share
        out[job.name] = loads
    return out


def _new_module(network: PSNet, *, number: int) -> Cluster:
    """Hosts, switches and inner links of the network's last module, under the file's next module number."""
    last = len(network.modules)
    lone = psnet_cluster(replace(network, wiring=Wiring(last, network.tors, ())))
    hosts = tuple(h.model_copy(update={"module": number}) for h in lone.hosts if h.module == last)
    switches = tuple(s.model_copy(update={"module": number}) for s in lone.switches if s.module == last)
    return Cluster(name="new-module", hosts=hosts, switches=switches, links=tuple(module_links(network, last)))


def _cut(cluster: Cluster, named: NamedPSNet, growth: NetworkGrowth) -> tuple[Link, ...]:
    """The file's entries of the cut links; among parallel ones the last."""
    out: list[Link] = []
    for a, b in growth.wiring.removed:
        ends = {named.supernode_names[a], named.supernode_names[b]}
        out.append(next(link for link in reversed(cluster.links) if {link.a, link.b} == ends and link not in out))
    return tuple(out)


def _plug(
    cluster: Cluster,
    named: NamedPSNet,
    growth: NetworkGrowth,
    unplug: tuple[Link, ...],
    fresh: Cluster,
    supernode: str,
) -> tuple[Link, ...]:
    freed: dict[str, list[int]] = {}
    for link in unplug:
        for end in (link.a, link.b):
            freed.setdefault(end, []).append(cluster.port(link, end))
    used: Mapping[str, set[int]] = {
        name: {cluster.port(link, name) for link in cluster.links_of[name]} for name in named.supernode_names.values()
    }
    own = max(fresh.port(link, supernode) for link in fresh.links_of[supernode]) + 1
    out = []
    for n, (a, _) in enumerate(growth.wiring.added):
        name = named.supernode_names[a]
        if freed.get(name):
            port = freed[name].pop(0)
        else:
            port = next(p for p in range(len(used[name]) + 1) if p not in used[name])
            used[name].add(port)
        link = Link(
            a=name,
            b=supernode,
            bandwidth=growth.network.inter_rate,
            delay=growth.network.latency_seconds,
            a_port=port,
            b_port=own + n,
        )
        out.append(link)
    return tuple(out)
