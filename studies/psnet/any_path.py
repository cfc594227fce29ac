"""The bound that any choice of paths between modules could reach, which ``routing`` is compared with."""

from __future__ import annotations

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import lil_array

from mlt.planners.psnet.checks import TopologyError
from mlt.planners.psnet.wiring import Pair


def any_path_seconds(trunks: dict[Pair, int], demand_bytes: dict[Pair, float], *, link_bits_per_second: float) -> float:
    """Time of the fullest inter-module link when bytes may take any ways at all, not only R shortest disjoint ones.

    The arc-based multi-commodity flow (one commodity per source), so a lower bound on what any choice of paths reaches;
    how far ``routing`` is from it is what choosing link-disjoint paths costs.

    demand_bytes: (from, to) -> bytes.
    """
    arcs = [arc for a, b in sorted(trunks) for arc in ((a, b), (b, a))]
    nodes = sorted({node for arc in arcs for node in arc})
    sources = sorted({a for a, _ in demand_bytes})
    unit = max(demand_bytes.values(), default=0.0)
    if unit == 0:
        return 0.0
    column = {(s, arc): 1 + i * len(arcs) + j for i, s in enumerate(sources) for j, arc in enumerate(arcs)}
    balance = lil_array((len(sources) * len(nodes), 1 + len(column)))
    supply = np.zeros(len(sources) * len(nodes))
    for i, s in enumerate(sources):
        for k, node in enumerate(nodes):
            row = i * len(nodes) + k
            wanted = {b: amount / unit for (a, b), amount in demand_bytes.items() if a == s}
            supply[row] = sum(wanted.values()) if node == s else -wanted.get(node, 0.0)
            for arc in arcs:
                if node in arc:
                    balance[row, column[s, arc]] = 1.0 if arc[0] == node else -1.0
    capacity = lil_array((len(arcs), 1 + len(column)))
    for j, arc in enumerate(arcs):
        capacity[j, 0] = -float(trunks[min(arc), max(arc)])
        for s in sources:
            capacity[j, column[s, arc]] = 1.0
    cost = np.zeros(1 + len(column))
    cost[0] = 1.0
    result = milp(
        cost,
        bounds=Bounds(0, np.inf),
        constraints=[
            LinearConstraint(balance.tocsr(), supply, supply),
            LinearConstraint(capacity.tocsr(), -np.inf, 0.0),
        ],
    )
    if result.x is None:
        raise TopologyError("some modules that exchange bytes are cut off from each other")
    return float(result.x[0]) * unit * 8 / link_bits_per_second
