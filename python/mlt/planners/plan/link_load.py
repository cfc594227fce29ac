"""Bits per second on every link under a plan: drawn by ``mlt plan show``, and a limit of a plan's real rate.

Streams without a planned route are spread evenly over all shortest paths, as equal-cost multipath does on average.
Planned routes are followed, and streams that meet in an aggregating pipeline leave it as one. Loads are those towards
the servers; ``with_results`` adds the results, which return along the same links at the same time.

A link here is a directed pair of node names; parallel cables between two nodes add up.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from mlt.planners.cluster import Cluster, Job
from mlt.planners.plan import Aggregation, InfeasibleError, Placement, Routing

Arc = tuple[str, str]
Loads = dict[Arc, float]


@dataclass(frozen=True)
class Demand:
    """A stream from one host to another, in bits per second (or any unit: loads are linear in it)."""

    source: str
    destination: str
    rate: float


def arc_bandwidths(cluster: Cluster) -> dict[Arc, float]:
    """Bandwidth of every directed link, parallel cables added up; a host's NIC limits its side."""
    out: dict[Arc, float] = {}
    for link in cluster.links:
        for arc in ((link.a, link.b), (link.b, link.a)):
            out[arc] = out.get(arc, 0.0) + link.bandwidth
    for arc in out:
        for end in arc:
            host = cluster.host_by_name.get(end)
            if host is not None:
                out[arc] = min(out[arc], host.bandwidth)
    return out


def _distances(
    neighbours: Mapping[str, Sequence[str]], hosts: Container[str], target: str, wanted: Iterable[str]
) -> dict[str, int]:
    """Hops to ``target``, searched until all ``wanted`` nodes are found; hosts do not forward."""
    distance, queue, missing = {target: 0}, deque([target]), set(wanted)
    while queue and missing:
        node = queue.popleft()
        for near in neighbours[node]:
            if near not in distance:
                distance[near] = distance[node] + 1
                missing.discard(near)
                if near not in hosts:
                    queue.append(near)
    return distance


def spread_over_shortest_paths(cluster: Cluster, demands: Iterable[Demand], *, job: str = "") -> Loads:
    """Load of each link of ``cluster``, by ``spread``."""
    neighbours = {
        name: sorted({cluster.peer(link, name) for link in links}) for name, links in cluster.links_of.items()
    }
    return spread(neighbours, cluster.host_by_name, demands, job=job)


def spread(
    neighbours: Mapping[str, Sequence[str]], hosts: Container[str], demands: Iterable[Demand], *, job: str = ""
) -> Loads:
    """Load of each link if every node splits its traffic evenly over its next hops towards the destination.

    ``hosts`` do not forward.

    Raises:
        InfeasibleError: a destination cannot be reached.
    """
    by_target: dict[str, dict[str, float]] = {}
    for demand in demands:
        if demand.source != demand.destination:
            sources = by_target.setdefault(demand.destination, {})
            sources[demand.source] = sources.get(demand.source, 0.0) + demand.rate
    loads: Loads = {}
    for target, sources in by_target.items():
        distance = _distances(neighbours, hosts, target, sources)
        lost = [source for source in sources if source not in distance]
        if lost:
            message = f"no path leads from {lost[0]!r} to {target!r}; add a link, or name hosts that are connected"
            raise InfeasibleError(job=job, constraint="connectivity", message=message)
        carried: dict[str, float] = dict(sources)
        # Farthest first: when a node is processed, all traffic that it forwards has arrived.
        waiting = sorted(carried, key=lambda node: distance[node])
        levels: dict[int, set[str]] = {}
        for node in waiting:
            levels.setdefault(distance[node], set()).add(node)
        for level in range(max(levels, default=0), 0, -1):
            for node in sorted(levels.get(level, ())):
                hops = [near for near in neighbours[node] if distance.get(near) == level - 1]
                for near in hops:
                    part = carried[node] / len(hops)
                    loads[node, near] = loads.get((node, near), 0.0) + part
                    carried[near] = carried.get(near, 0.0) + part
                    levels.setdefault(level - 1, set()).add(near)
    return loads


def all_to_all_loads(cluster: Cluster, workers: Sequence[str], loads: Mapping[str, float], *, job: str = "") -> Loads:
    """Load of each link when every worker sends ``loads[service]`` to every service but itself.

    n workers and n services are n^2 streams. Hosts with one uplink are counted per switch instead; the loads are the
    same, because all traffic between two switches takes the same paths. Other hosts are counted one by one.

    Raises:
        InfeasibleError: a service cannot be reached.
    """
    uplink = {name: cluster.peer(links[0], name) for name, links in cluster.links_of.items() if len(links) == 1}
    uplink = {name: switch for name, switch in uplink.items() if switch in cluster.switch_by_name}
    out: Loads = {}
    demands: list[Demand] = []
    total, senders = sum(loads.values()), Counter(uplink[worker] for worker in workers if worker in uplink)
    arriving: dict[str, float] = {}
    members = set(workers)
    for service, load in loads.items():
        if service in uplink:
            out[uplink[service], service] = load * (len(members) - (service in members))
            arriving[uplink[service]] = arriving.get(uplink[service], 0.0) + load
            demands += [Demand(worker, uplink[service], load) for worker in workers if worker not in uplink]
        else:
            demands += [Demand(switch, service, load * count) for switch, count in senders.items()]
            demands += [Demand(worker, service, load) for worker in workers if worker not in uplink]
    for worker in workers:
        if worker in uplink:
            out[worker, uplink[worker]] = total - loads.get(worker, 0.0)
    demands += [Demand(a, b, count * load) for a, count in senders.items() for b, load in arriving.items()]
    for arc, load in spread_over_shortest_paths(cluster, demands, job=job).items():
        out[arc] = out.get(arc, 0.0) + load
    return out


def aggregation_demands(aggregation: Aggregation, *, rate: float) -> list[Demand]:
    """Streams of ALEPH's tree: members to aggregators, aggregators and direct workers to every server by its share."""
    demands = [Demand(m, cluster.aggregator, rate) for cluster in aggregation.clusters for m in cluster.members]
    heads = [*(cluster.aggregator for cluster in aggregation.clusters), *aggregation.direct]
    return demands + [
        Demand(head, share.server, rate * share.share)
        for head in heads
        for share in aggregation.shares
        if share.share > 0
    ]


def parameter_server_demands(cluster: Cluster, job: Job, *, rate: float) -> list[Demand]:
    """Every worker to every server, split by the servers' bandwidth."""
    total = sum(cluster.host_by_name[name].bandwidth for name in job.servers)
    return [
        Demand(worker, server, rate * cluster.host_by_name[server].bandwidth / total)
        for worker in job.workers
        for server in job.servers
    ]


def ring_demands(job: Job, *, rate: float) -> list[Demand]:
    """Each worker to the next, in the job's order."""
    ring = job.workers
    return [Demand(a, b, rate) for a, b in zip(ring, (*ring[1:], ring[0]), strict=True) if a != b]


def routed_loads(routing: Routing) -> Loads:
    """Loads of planned routes: after an aggregating pipeline only the first stream of a task continues."""
    loads: Loads = {}
    for task in routing.tasks:
        merged: set[tuple[str, int]] = set()
        for route in task.routes:
            pipelines = {use.switch: use.pipeline for use in route.aggregated_at}
            for here, there in zip(route.path, route.path[1:], strict=False):
                if here in pipelines:
                    place = (here, pipelines[here])
                    if place in merged:
                        break
                    merged.add(place)
                loads[here, there] = loads.get((here, there), 0.0) + task.rate
    return loads


def placed_loads(cluster: Cluster, job: Job, placement: Placement, *, rate: float) -> Loads:
    """Loads of PSNet's placement if every worker sends at ``rate``, in equal parts to all servers of the job.

    Between modules they follow the planned paths and enter by the planned ToRs; within a module, and where the
    placement has no path, they are spread over the shortest paths. ``cluster`` has the plan's circuits as links.

    Raises:
        InfeasibleError: a server cannot be reached.
    """
    module = {host.name: host.module for host in cluster.hosts}
    tor_module = {switch.name: switch.module for switch in cluster.switches}
    paths: dict[tuple[int | None, int | None], list[tuple[Sequence[str], float]]] = {}
    for path in placement.options.get("paths", ()):
        pair = (path["from_module"], path["to_module"])
        paths.setdefault(pair, []).append((path["switches"], path["share"]))
    entry = dict(placement.options.get("entry", {}))
    demands: list[Demand] = []
    loads: defaultdict[Arc, float] = defaultdict(float)
    part = rate / len(job.servers) if job.servers else 0.0
    for worker in job.workers:
        for server in job.servers:
            between = paths.get((module[worker], module[server]), ())
            entries = [
                (tor, share) for tor, share in entry.items() if tor_module.get(tor) == module[server] and share > 0
            ]
            if not between or not entries:
                demands.append(Demand(worker, server, part))
                continue
            for switches, share in between:
                demands.append(Demand(worker, switches[0], part * share))
                for arc in pairwise(switches):
                    loads[arc] += part * share
                for tor, of_tor in entries:
                    loads[switches[-1], tor] += part * share * of_tor
                    loads[tor, server] += part * share * of_tor
    for arc, load in spread_over_shortest_paths(cluster, demands, job=job.name).items():
        loads[arc] += load
    return dict(loads)


def with_results(loads: Loads) -> Loads:
    """``loads`` plus their mirror image: sums return along the path of their parts, while more parts are in flight."""
    out = dict(loads)
    for (a, b), load in loads.items():
        out[b, a] = out.get((b, a), 0.0) + load
    return out


def most_loaded(loads: Loads, bandwidths: Mapping[Arc, float]) -> tuple[Arc, float] | None:
    """The link with the highest utilisation, and that utilisation; None without any load."""
    busy = [(load / bandwidths[arc], arc) for arc, load in loads.items() if arc in bandwidths]
    if not busy:
        return None
    utilisation, arc = max(busy)
    return arc, utilisation
