"""Independent check of a routing: takes the links, sends every byte, and measures the links.

Shares no code with ``routing`` (its model, its loads, its units); it uses only the plan's own description. Rules: every
circuit exists once and leads to a free port, every path uses existing trunks, shares add up to one, and no link takes
longer than the plan says.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from mlt.planners.psnet.checks import TopologyError
from mlt.planners.psnet.circuits import Circuits, link_rates
from mlt.planners.psnet.jobs import PlacedJob
from mlt.planners.psnet.psnet import PSNet
from mlt.planners.psnet.routing import RoutePlan

_TOLERANCE = 1e-6


@dataclass(frozen=True)
class Verdict:
    """Real load of the links of a routing: ``bytes_on`` by (from, to), the busiest link and its time."""

    bytes_on: Mapping[tuple[str, str], float]
    fullest: tuple[str, str]
    seconds: float
    job_seconds: Mapping[str, float]


def verify_routes(
    network: PSNet, jobs: Sequence[PlacedJob], plan: RoutePlan, circuits: Mapping[int, Circuits]
) -> Verdict:
    """Send the bytes of ``jobs`` along ``plan`` with these circuits.

    Raises:
        TopologyError: the plan breaks a rule; the message gives the rule and the place.
    """
    for mid, state in circuits.items():
        twice = [end for end, uses in Counter(c for c in state.of if c is not None).items() if uses > 1]
        if twice:
            raise TopologyError(f"module {mid}: two circuits lead to ToR and port {twice[0]}")
        module = network.module(mid)
        for worker, end in enumerate(state.of):
            if end is not None and not (0 <= end[0] < module.tors and 0 <= end[1] < module.tor_downlinks):
                raise TopologyError(
                    f"module {mid}: the circuit of worker {worker} leads to {end}, which does not exist"
                )
    rates = link_rates(network, circuits)
    loads: defaultdict[tuple[str, str], float] = defaultdict(float)
    links_of: dict[str, set[tuple[str, str]]] = {}
    for job in jobs:
        for a, workers in job.workers.items():
            for worker in workers:
                for b, servers in job.servers.items():
                    for server in servers:
                        routes = _routes(network, rates, plan, job, (a, worker), (b, server))
                        for nodes, share in routes:
                            for link in pairwise(nodes):
                                loads[link] += job.size_bytes / job.server_count * share
                                links_of.setdefault(job.name, set()).add(link)
    times = {link: 8 * amount / rates[link] for link, amount in loads.items()}
    fullest = max(times, key=lambda link: times[link])
    if times[fullest] > plan.transfer_seconds * (1 + _TOLERANCE):
        raise TopologyError(
            f"link {fullest[0]} -> {fullest[1]} needs {times[fullest]:.6g} s, "
            f"the plan says {plan.transfer_seconds:.6g} s"
        )
    job_seconds = {name: max(times[link] for link in links) for name, links in links_of.items()}
    return Verdict(dict(loads), fullest, times[fullest], job_seconds)


def _routes(
    network: PSNet,
    rates: Mapping[tuple[str, str], float],
    plan: RoutePlan,
    job: PlacedJob,
    source: tuple[int, int],
    target: tuple[int, int],
) -> list[tuple[list[str], float]]:
    """Every (nodes, share) of the routes from one worker to one server."""
    (a, worker), (b, server) = source, target
    worker_name, server_name = network.worker_name(a, worker), network.server_name(b, server)
    tors = [f"tor-{a}-{t + 1}" for t in range(network.tors) if (worker_name, f"tor-{a}-{t + 1}") in rates]
    if len(tors) != 1:
        raise TopologyError(f"{worker_name} of job {job.name!r} has {len(tors)} circuits; expected one")
    if a == b:
        routes = [([worker_name, tors[0], server_name], 1.0)]
    else:
        paths, entry = plan.paths.get((a, b)), plan.entry.get((job.name, b))
        if not paths or not entry:
            raise TopologyError(
                f"job {job.name!r} sends from module {a} to {b}, but the plan has no route between them"
            )
        routes = [
            (
                [worker_name, tors[0], *(f"supernode-{m}" for m in path), f"tor-{b}-{t + 1}", server_name],
                part * share,
            )
            for path, share in paths.items()
            for t, part in enumerate(entry)
            if part > 0
        ]
    total = sum(share for _, share in routes)
    if abs(total - 1) > _TOLERANCE or any(share < 0 for _, share in routes):
        raise TopologyError(f"the routes from {worker_name} to {server_name} carry {total:.9f} of the bytes, not all")
    for nodes, _ in routes:
        missing = [link for link in pairwise(nodes) if link not in rates]
        if missing:
            raise TopologyError(f"a route from {worker_name} to {server_name} uses {missing[0]}, which is not a link")
    return routes
