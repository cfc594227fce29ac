"""Among routings with the same slowest job, the one that is lexicographically best for every link.

Progressive filling, as for max-min fair rates. The time of the busiest link is minimised. Links that must be that full
in every solution (their dual is not zero) keep it as their limit; then the busiest of the others is minimised, and so
on. It ends when the workers' own links are the slowest. Then the bytes use as few inter-module links as these limits
allow. Circuits (the integer columns) stay unchanged.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog
from scipy.sparse import csr_array

from mlt.planners.psnet.routing_model import SAME, Array, Model, integrality

#: scipy's published type stubs do not allow sparse matrices here.
_linprog: Any = linprog

Flags: TypeAlias = NDArray[np.bool_]

_ROUNDS = 100
_DUAL = 1e-9


@dataclass(frozen=True)
class _Links:
    """Rows of links with load from the free columns: ``use`` @ x <= capacity * time."""

    use: csr_array
    capacity: Array
    equal: csr_array
    amounts: Array
    low: Array
    high: Array


def settle(model: Model, best: Array, *, enough: float) -> Array:
    """A solution as good as ``best`` that loads every link as little as the busier ones allow.

    enough: below this time a link's load is not reduced further.
    """
    links = _links(model, best)
    if links.use.shape[0] == 0:
        return best
    limit = np.full(links.use.shape[0], np.inf)
    theta = float(best[0])
    for _ in range(_ROUNDS):
        open_ = np.isinf(limit)
        if not open_.any() or theta <= enough:
            break
        result = _fullest(links, limit, open_)
        if result is None:
            break
        theta, tight = result
        if not tight.any():
            break
        limit[tight] = theta
    limit[np.isinf(limit)] = theta
    cost = np.zeros(len(model.columns))
    for key, column in model.columns.items():
        if isinstance(key, tuple) and key[0] == "x":
            cost[column] = len(key[3]) - 1
    room = links.capacity * limit * (1 + SAME)
    bounds = np.column_stack([links.low, links.high])
    last = _linprog(cost, A_ub=links.use, b_ub=room, A_eq=links.equal, b_eq=links.amounts, bounds=bounds)
    if last.x is None:
        return best
    solution = np.asarray(last.x, dtype=np.float64)
    solution[0] = best[0]
    return solution


def _links(model: Model, best: Array) -> _Links:
    free = {c for key, c in model.columns.items() if isinstance(key, tuple) and key[0] in ("r", "x")}
    width = len(model.columns)
    shared = [row for row in model.rows if 0 in row and free & row.keys()]
    equal = [
        (row, amount) for row, amount in zip(model.rows, model.low, strict=True) if 0 not in row and np.isfinite(amount)
    ]
    whole = integrality(model) == 1
    low, high = np.zeros(width), np.full(width, np.inf)
    low[whole] = high[whole] = np.round(best[whole])
    return _Links(
        use=_matrix([{c: v for c, v in row.items() if c} for row in shared], width),
        capacity=np.array([-row[0] for row in shared]),
        equal=_matrix([row for row, _ in equal], width),
        amounts=np.array([amount for _, amount in equal]),
        low=low,
        high=high,
    )


def _fullest(links: _Links, limit: Array, open_: Flags) -> tuple[float, Flags] | None:
    """(min time of the busiest link without a limit, the links that are that full in every solution)."""
    use = links.use.tolil()
    use[:, [0]] = -(links.capacity * open_)[:, None]
    room = np.where(open_, 0.0, links.capacity * np.where(open_, 0.0, limit) * (1 + SAME))
    cost = np.zeros(use.shape[1])
    cost[0] = 1.0
    bounds = np.column_stack([links.low, links.high])
    result = _linprog(cost, A_ub=use.tocsr(), b_ub=room, A_eq=links.equal, b_eq=links.amounts, bounds=bounds)
    if result.x is None:
        return None
    return float(result.x[0]), open_ & (np.asarray(result.ineqlin.marginals) < -_DUAL)


def _matrix(rows: list[dict[int, float]], width: int) -> csr_array:
    cells = [(r, c, v) for r, terms in enumerate(rows) for c, v in terms.items()]
    places = ([r for r, _, _ in cells], [c for _, c, _ in cells])
    return csr_array(([v for _, _, v in cells], places), shape=(len(rows), width))
