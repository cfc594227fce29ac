"""Measurements the paper does not have: what failures cost, how growth ages a network, what routing gains.

Faults: 5 modules, R = 4, 24 ports per module towards workers, once with a quarter of them free and once full.
Growth: module by module from 2 to 64, against a fresh random regular graph of the same size.
Routing: jobs too large for a module placed by ``placement`` on 12 modules; push time of the routed plan (R disjoint
paths, and with 16 shortest ones added) against the best that any paths could reach, one shortest path per pair of
modules, and doing nothing (circuits as cabled, equal split over shortest paths).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from random import Random
from statistics import mean, stdev

import networkx as nx

from mlt.planners.psnet.jobs import JobRequest, PlacedJob
from mlt.planners.psnet.paths import disjoint_paths
from mlt.planners.psnet.placement import place_jobs
from mlt.planners.psnet.psnet import Module, PSNet, build_psnet
from mlt.planners.psnet.routing import circuits_of, demands, route_jobs
from mlt.planners.psnet.verify import verify_routes
from mlt.planners.psnet.wiring import Wiring, grow_wiring, regular_wiring
from studies.psnet.any_path import any_path_seconds
from studies.psnet.flows import drain, fluid_loads, push_demands
from studies.psnet.psnet_graph import logical_graph
from studies.psnet.survey import Kind, Survey, survey

KINDS: tuple[Kind, ...] = ("tor", "server", "server-link", "tor-port", "supernode", "ecs", "trunk")
MODULES = {
    "quarter free": Module(ecs_ports=24, tor_downlinks=6, tor_uplinks=5, workers=18),
    "full": Module(ecs_ports=24, tor_downlinks=6, tor_uplinks=5),
}


def fault_study(*, failures: Sequence[int] = (1, 2, 3), draws: int = 100, seed: int = 0) -> list[tuple[str, Survey]]:
    """(module, survey) for every kind of element and number of failures."""
    out = []
    for name, module in MODULES.items():
        network = build_psnet(module, modules=5, seed=seed)
        for kind in KINDS:
            out += [(name, survey(network, kind, k, draws=draws, seed=seed)) for k in failures]
    return out


@dataclass(frozen=True)
class Age:
    """A grown wiring beside a fresh one of the same size. ``mean_hops``: average distance between two modules."""

    modules: int
    ports: int
    links_cut: int
    connectivity: int
    mean_hops: float
    diameter: int
    fresh_mean_hops: float
    fresh_diameter: int


def growth_study(*, ports: int = 4, up_to: int = 64, seed: int = 0) -> list[Age]:
    """Grow from two modules, one at a time."""
    wiring = regular_wiring(2, ports, seed=seed)
    out = []
    for modules in range(3, up_to + 1):
        growth = grow_wiring(wiring, seed=seed)
        wiring = growth.wiring
        fresh = regular_wiring(modules, ports, seed=seed)
        out.append(
            Age(
                modules=modules,
                ports=ports,
                links_cut=len(growth.removed),
                connectivity=wiring.edge_connectivity(),
                mean_hops=_mean_hops(wiring),
                diameter=nx.diameter(wiring.graph()),
                fresh_mean_hops=_mean_hops(fresh),
                fresh_diameter=nx.diameter(fresh.graph()),
            )
        )
    return out


@dataclass(frozen=True)
class Gain:
    """Push times of one seed's jobs, seconds. ``any_path``: no choice of paths and circuits can be faster."""

    seed: int
    planned: float
    bound: float
    with_extra_paths: float
    any_path: float
    one_path: float
    as_cabled: float


def routing_study(*, seeds: Sequence[int] = range(20), modules: int = 12) -> list[Gain]:
    """Six jobs of 30 to 45 workers (a module has 24) and 2 to 6 servers per seed."""
    out = []
    for seed in seeds:
        rng = Random(seed)
        network = build_psnet(MODULES["full"], modules=modules, seed=seed)
        requests = [
            JobRequest(
                name=f"job-{n}",
                workers=rng.randint(30, 45),
                servers=rng.randint(2, 6),
                size_bytes=rng.choice([97e6, 528e6]),
            )
            for n in range(6)
        ]
        out.append(_gain(network, place_jobs(network, requests).jobs, seed))
    return out


def interval(values: Sequence[float]) -> tuple[float, float]:
    """(mean, half width of its 95 % interval)."""
    return mean(values), 1.96 * stdev(values) / len(values) ** 0.5


def _gain(network: PSNet, jobs: Sequence[PlacedJob], seed: int) -> Gain:
    plan = route_jobs(network, jobs)
    circuits = {mid: made.circuits for mid, made in circuits_of(network, jobs, plan).items()}
    planned = verify_routes(network, jobs, plan, circuits).seconds
    crossing = demands(jobs)
    trunks = network.wiring.trunks()
    # What the modules themselves need, with nothing between them in the way.
    inside = route_jobs(replace(network, inter_bits_per_second=network.inter_rate * 1e6), jobs).bound_seconds
    one: dict[tuple[int, int], float] = {}
    for (a, b), amount in crossing.items():
        path = next(iter(disjoint_paths(trunks, a, b)))
        for link in pairwise(path):
            one[link] = one.get(link, 0.0) + amount
    one_path = max((8 * v / network.inter_rate / trunks[min(e), max(e)] for e, v in one.items()), default=0.0)
    any_path = any_path_seconds(trunks, crossing, link_bits_per_second=network.inter_rate)
    cabled = logical_graph(network)
    loads: dict[tuple[str, str], float] = {}
    for job in jobs:
        workers = [network.worker_name(m, w) for m, members in job.workers.items() for w in members]
        servers = [network.server_name(m, s) for m, members in job.servers.items() for s in members]
        for ends, load in fluid_loads(cabled, push_demands(workers, servers, job.size_bytes)).items():
            loads[ends] = loads.get(ends, 0.0) + load
    return Gain(
        seed=seed,
        planned=planned,
        bound=plan.bound_seconds,
        with_extra_paths=route_jobs(network, jobs, extra_paths=16).transfer_seconds,
        any_path=max(inside, any_path),
        one_path=max(inside, one_path),
        as_cabled=drain(cabled, loads).seconds,
    )


def _mean_hops(wiring: Wiring) -> float:
    return float(nx.average_shortest_path_length(wiring.graph()))
