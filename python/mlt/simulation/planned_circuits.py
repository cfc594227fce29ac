"""PSNet's routes in the simulator: a worker's ToR, the modules' SuperNode switches, the server's entry ToR.

Within a module, a worker and a server are two hops apart. Between modules, the plan gives shares of two kinds: of the
paths between two modules, and of the ToRs through which traffic enters to a job's servers. A transfer is spread over 16
paths; each takes one combination of path and entry. The rounding error of one pair of hosts carries over to the next
pair, so all workers of a ToR together meet the shares to one part in 16. The cables determine the module of each host.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

from mlt.planners.cluster import Cluster, Job
from mlt.planners.plan import Placement
from mlt.simulation.scenario import MAX_PATHS, Ways
from mlt.simulation.workload import NotSimulated

Way = tuple[str, ...]


def planned_ways(cluster: Cluster, job: Job, placement: Placement) -> tuple[Ways, ...]:
    """The routes from every worker of ``job`` to each of its servers, according to ``placement``.

    Args:
        cluster: the network with its circuits as cables.

    Raises:
        NotSimulated: the placement gives no route from a worker to a server.
    """
    near = _neighbours(cluster)
    paths: Sequence[Mapping[str, Any]] = placement.options.get("paths", ())
    entry: Mapping[str, float] = placement.options.get("entry", {})
    debts: dict[tuple[str, str], dict[Way, float]] = {}
    out = []
    for worker in job.workers:
        tor = placement.tor_of.get(worker)
        if tor is None:
            raise NotSimulated(f"the placement gives worker {worker!r} no ToR")
        for server in job.servers:
            if server in near[tor]:
                out.append(Ways(worker, server, ((worker, tor, server),)))
                continue
            shares = {
                (*path["switches"], exit_tor): path["share"] * through
                for path, (exit_tor, through) in product(paths, entry.items())
                if path["switches"][0] in near[tor]
                and exit_tor in near[path["switches"][-1]]
                and server in near[exit_tor]
                and path["share"] * through > 0
            }
            if not shares:
                raise NotSimulated(f"the placement has no path from {worker!r} to {server!r}")
            total = sum(shares.values())
            even = {way: share / total for way, share in shares.items()}
            dealt = _deal(debts.setdefault((tor, server), {}), even, MAX_PATHS)
            out.append(Ways(worker, server, tuple((worker, tor, *way, server) for way in dealt)))
    return tuple(out)


def _neighbours(cluster: Cluster) -> dict[str, set[str]]:
    near: dict[str, set[str]] = {name: set() for name in (*cluster.host_by_name, *cluster.switch_by_name)}
    for link in cluster.links:
        near[link.a].add(link.b)
        near[link.b].add(link.a)
    return near


def _deal(debts: dict[Way, float], shares: Mapping[Way, float], count: int) -> list[Way]:
    """Choose ``count`` routes, each time the one with the largest debt; ``debts`` carries the remainder over."""
    dealt = []
    for _ in range(count):
        for way, share in shares.items():
            debts[way] = debts.get(way, 0.0) + share
        chosen = max(shares, key=lambda way: (debts[way], way))
        debts[chosen] -= 1
        dealt.append(chosen)
    return dealt
