"""Reachability in a PSNet over many sets of failures: all of them, or random ones where there are many."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from math import comb
from random import Random
from statistics import mean
from typing import Literal, get_args

from mlt.planners.psnet.checks import TopologyError, require_count
from mlt.planners.psnet.psnet import PSNet
from studies.psnet.faults import Element, reach
from studies.psnet.psnet_graph import physical_graph

Kind = Literal["tor", "server", "worker", "supernode", "ecs", "link", "server-link", "tor-port", "worker-link", "trunk"]

#: More cases than this are sampled, not enumerated.
_EXHAUSTIVE = 5000


@dataclass(frozen=True)
class Survey:
    """(mean, worst) shares of pairs, 0 to 1, over many sets of ``failures`` failed elements of one ``kind``."""

    kind: Kind
    failures: int
    cases: int
    exhaustive: bool
    as_is: tuple[float, float]
    repaired: tuple[float, float]
    any_way: tuple[float, float]
    modules_joined: tuple[float, float]
    worst_case: tuple[Element, ...]


def elements(network: PSNet, kind: Kind) -> list[Element]:
    """Everything of one kind that can fail. ``link`` is every cable; the other link kinds are parts of it."""
    if kind not in get_args(Kind):
        raise TopologyError(f"no kind of element {kind!r}; expected one of {', '.join(get_args(Kind))}")
    graph = physical_graph(network)
    roles: dict[str, str] = {name: data["role"] for name, data in graph.nodes(data=True)}
    if kind in ("tor", "server", "worker", "supernode", "ecs"):
        return [name for name, role in roles.items() if role == kind]
    ends: dict[str, set[frozenset[str]]] = {
        "server-link": {frozenset(("server", "tor"))},
        "tor-port": {frozenset(("ecs", "tor"))},
        "worker-link": {frozenset(("worker", "ecs"))},
        "trunk": {frozenset(("supernode",))},
    }
    wanted = ends.get(kind)
    return [
        (a, b, n)
        for a, b, data in graph.edges(data=True)
        if wanted is None or frozenset((roles[a], roles[b])) in wanted
        for n in range(data["links"])
    ]


def survey(network: PSNet, kind: Kind, failures: int, *, draws: int = 200, seed: int = 0) -> Survey:
    """``reach`` over all sets of ``failures`` elements of a kind, or over ``draws`` random ones where there are many.

    The worst case is the worst of those tried: proven when ``exhaustive``, a sample's otherwise.
    """
    require_count("failures", failures, minimum=0)
    require_count("draws", draws)
    pool = elements(network, kind)
    if failures > len(pool):
        raise TopologyError(f"{failures} failures of kind {kind!r}, but there are {len(pool)} of it")
    exhaustive = comb(len(pool), failures) <= min(draws, _EXHAUSTIVE)
    rng = Random(seed)
    cases = (
        list(combinations(pool, failures)) if exhaustive else [tuple(rng.sample(pool, failures)) for _ in range(draws)]
    )
    results = [reach(network, case) for case in cases]
    shares = {
        name: [getattr(result, name) / max(getattr(result, whole), 1) for result in results]
        for name, whole in (
            ("as_is", "pairs"),
            ("repaired", "pairs"),
            ("any_way", "pairs"),
            ("modules_joined", "module_pairs"),
        )
    }
    if len(network.modules) == 1:
        shares["modules_joined"] = [1.0] * len(results)
    worst = min(range(len(cases)), key=lambda n: (shares["any_way"][n], shares["repaired"][n], n))
    ends = {name: (mean(values), min(values)) for name, values in shares.items()}
    return Survey(
        kind=kind,
        failures=failures,
        cases=len(cases),
        exhaustive=exhaustive,
        as_is=ends["as_is"],
        repaired=ends["repaired"],
        any_way=ends["any_way"],
        modules_joined=ends["modules_joined"],
        worst_case=cases[worst],
    )
