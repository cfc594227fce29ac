"""Links between modules: an R-regular graph of SuperNode switches, and its growth by one module.

Source: PSNet, section 3.1 (inter-module construction) and 3.4 (an R-regular random graph is almost surely R-connected,
so between two modules there are R paths that share no link). "Almost surely" is not "always": a draw that is not
R-edge-connected is drawn again.

Growth replaces links instead of adding ports. The new module needs R ports and cutting one link frees two, so
floor(R/2) cuts are both needed and enough (one port fewer is used if R is odd and no earlier growth left a port).

With R or fewer modules no simple R-regular graph exists; there, parallel links connect modules (two modules by R of
them). If R * H is odd, one module keeps one port free.

Module numbers count from 1, as in the addresses.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from random import Random

import networkx as nx
import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp

from mlt.planners.psnet.checks import TopologyError, require_count

Pair = tuple[int, int]

#: A random regular graph fails to be R-edge-connected with a probability that vanishes with H; R >= 3, H > R.
_DRAWS = 64


@dataclass(frozen=True)
class Wiring:
    """The connected modules. ``links`` is sorted, each (low, high); a pair appears once per parallel link."""

    modules: int
    ports: int
    links: tuple[Pair, ...]

    def __post_init__(self) -> None:
        if self.links != tuple(sorted(self.links)):
            raise TopologyError("the links of a wiring must be sorted")
        for a, b in self.links:
            if not 1 <= a < b <= self.modules:
                raise TopologyError(
                    f"link {a} - {b} is not between two of the modules 1..{self.modules}, low one first"
                )
        for mid, free in self.free_ports.items():
            if free < 0:
                raise TopologyError(f"module {mid} has {self.ports - free} links but its switch has {self.ports} ports")

    @property
    def free_ports(self) -> dict[int, int]:
        """Unused inter-module ports of each module."""
        used = Counter(end for link in self.links for end in link)
        return {mid: self.ports - used[mid] for mid in range(1, self.modules + 1)}

    def trunks(self) -> dict[Pair, int]:
        """Number of parallel links of each joined pair."""
        return dict(Counter(self.links))

    def graph(self) -> nx.Graph[int]:
        """Modules as nodes, joined pairs as edges with attribute ``links``."""
        graph: nx.Graph[int] = nx.Graph()
        graph.add_nodes_from(range(1, self.modules + 1))
        for (a, b), links in self.trunks().items():
            graph.add_edge(a, b, links=links)
        return graph

    def edge_connectivity(self) -> int:
        """Min number of failed links that disconnect two modules (parallel links count each)."""
        graph = self.graph()
        if self.modules == 1:
            return 0
        if not nx.is_connected(graph):
            return 0
        cut, _ = nx.stoer_wagner(graph, weight="links")
        return int(cut)


@dataclass(frozen=True)
class Growth:
    """One step of growth: the unplugged cables, and the new ones."""

    wiring: Wiring
    removed: tuple[Pair, ...]
    added: tuple[Pair, ...]


def best_connectivity(modules: int, ports: int) -> int:
    """The target edge connectivity of a wiring: R, or R - 1 if one port must stay free (R * H odd)."""
    if modules == 1:
        return 0
    return ports - (modules * ports) % 2


def regular_wiring(modules: int, ports: int, *, seed: int) -> Wiring:
    """An R-regular (R = ``ports``), R-edge-connected wiring; the same for the same seed.

    Raises:
        TopologyError: R = 1 with more than two modules cannot be connected.
    """
    require_count("modules", modules)
    require_count("R (inter-module ports per module)", ports)
    if modules == 1:
        return Wiring(1, ports, ())
    if ports == 1 and modules > 2:
        raise TopologyError(f"R = 1 joins two modules at most, not {modules}; use ToRs with fewer downlinks (larger R)")
    if modules == 2:
        return Wiring(2, ports, ((1, 2),) * ports)
    if modules <= ports or modules * ports % 2:
        return grow_wiring(regular_wiring(modules - 1, ports, seed=seed), seed=seed).wiring
    rng = Random(seed)
    if ports == 2:  # a random 2-regular graph is mostly several rings; one ring is connected
        order = list(range(1, modules + 1))
        rng.shuffle(order)
        return _wiring(modules, ports, zip(order, order[1:] + order[:1], strict=True))
    for _ in range(_DRAWS):
        graph = nx.random_regular_graph(ports, modules, seed=rng.getrandbits(32))
        wiring = _wiring(modules, ports, ((a + 1, b + 1) for a, b in graph.edges()))
        if wiring.edge_connectivity() == ports:
            return wiring
    raise TopologyError(
        f"no {ports}-edge-connected graph in {_DRAWS} draws for {modules} modules, seed {seed}; try another seed"
    )


def grow_wiring(wiring: Wiring, *, seed: int, disturbance: Mapping[Pair, float] | None = None) -> Growth:
    """Add module H + 1, cutting as few links as possible and, among those choices, the ones with the least disturbance.

    disturbance: cost of cutting one link between a pair (say, bytes a running cross-module job sends over it); pairs
        not named cost nothing. The total is minimised exactly; ties are broken by ``seed``.
    """
    new = wiring.modules + 1
    if wiring.ports == 1 and new > 2:
        raise TopologyError(f"R = 1 joins two modules at most, not {new}; use ToRs with fewer downlinks (larger R)")
    plugged = [mid for mid, free in wiring.free_ports.items() for _ in range(free)][: wiring.ports]
    cuts = (wiring.ports - len(plugged)) // 2
    target = best_connectivity(new, wiring.ports)
    rng = Random(seed * 1_000_003 + new)
    best: tuple[int, Growth] | None = None
    for _ in range(_DRAWS):
        removed = _cheapest_cuts(wiring, cuts, plugged, disturbance or {}, rng)
        added = [(mid, new) for mid in plugged] + [(mid, new) for link in removed for mid in link]
        left = Counter(wiring.links)
        left.subtract(removed)
        grown = Wiring(new, wiring.ports, tuple(sorted([*left.elements(), *added])))
        growth = Growth(wiring=grown, removed=tuple(sorted(removed)), added=tuple(sorted(added)))
        reached = grown.edge_connectivity()
        if best is None or reached > best[0]:
            best = (reached, growth)
        if reached >= target:
            break
    assert best is not None
    return best[1]


def _wiring(modules: int, ports: int, pairs: Iterable[Pair]) -> Wiring:
    return Wiring(modules, ports, tuple(sorted((min(a, b), max(a, b)) for a, b in pairs)))


def _cheapest_cuts(
    wiring: Wiring, cuts: int, plugged: list[int], disturbance: Mapping[Pair, float], rng: Random
) -> list[Pair]:
    """``cuts`` links of min total disturbance whose ends all differ, or repeat as rarely as possible."""
    if cuts == 0:
        return []
    links = list(wiring.links)
    jitter = np.array([rng.random() for _ in links])
    cost = np.array([float(disturbance.get(link, 0.0)) for link in links])
    if (cost < 0).any() or not np.isfinite(cost).all():
        raise TopologyError("the disturbance of a link must be a finite number of at least zero")
    # The jitter must never outweigh a difference in cost: it is scaled below the smallest positive gap.
    distinct = np.unique(cost)
    gap = float(np.diff(distinct).min()) if len(distinct) > 1 else 1.0
    weight = cost + jitter * gap / (2 * cuts)
    incidence = np.zeros((wiring.modules, len(links)))
    for column, (a, b) in enumerate(links):
        incidence[a - 1, column] = incidence[b - 1, column] = 1
    used = np.array([plugged.count(mid) for mid in range(1, wiring.modules + 1)])
    for maximum in range(1, wiring.ports + 1):
        room = np.maximum(maximum - used, 0)
        result = milp(
            weight,
            integrality=np.ones(len(links), dtype=np.int64),
            bounds=Bounds(0, 1),
            constraints=[
                LinearConstraint(np.ones((1, len(links))), cuts, cuts),
                LinearConstraint(incidence, -np.inf, room),
            ],
            options={"mip_rel_gap": 0.0},
        )
        if result.x is not None:
            return [link for link, chosen in zip(links, result.x, strict=True) if chosen > 0.5]
    raise AssertionError("cutting links until every port is free always finds enough")
