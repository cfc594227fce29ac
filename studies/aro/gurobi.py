"""Gurobi in place of HiGHS, to compare: inside ``using_gurobi`` it answers every programme of ``mlt.planners.aro``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np

from mlt.planners.aro.flow import BoolArray
from mlt.planners.aro.graph import FloatArray
from mlt.planners.aro.highs import OTHER, Answer, Rows, Verdict


@contextmanager
def using_gurobi() -> Iterator[None]:
    """Raises ValueError where it is not installed."""
    if find_spec("gurobipy") is None:
        raise ValueError("gurobipy is not installed")
    token = OTHER.set(_solve)
    try:
        yield
    finally:
        OTHER.reset(token)


def _solve(
    cost: FloatArray,
    lower: FloatArray,
    upper: FloatArray,
    integer: BoolArray,
    rows: Rows,
    *,
    seconds: float,
    gap: float,
    start: FloatArray | None,
) -> Answer:
    gurobi: Any = import_module("gurobipy")
    sparse: Any = import_module("scipy.sparse")
    with gurobi.Env(params={"OutputFlag": 0}) as environment, gurobi.Model(env=environment) as model:
        model.Params.TimeLimit, model.Params.MIPGap, model.Params.Threads = seconds, gap, 1
        kinds = np.where(integer, "I", "C")
        x = model.addMVar(len(cost), lb=lower, ub=upper, obj=cost, vtype=kinds)
        starts, columns, values = rows.compressed()
        if len(rows.low):
            matrix = sparse.csr_array((values, columns, starts), shape=(len(rows.low), len(cost)))
            low, high = np.array(rows.low), np.array(rows.high)
            above, below = np.isfinite(low), np.isfinite(high)
            if above.any():
                model.addConstr(matrix[np.flatnonzero(above)] @ x >= low[above])
            if below.any():
                model.addConstr(matrix[np.flatnonzero(below)] @ x <= high[below])
        if start is not None:
            x.Start = start
        model.optimize()
        if model.Status == gurobi.GRB.INFEASIBLE:
            return Answer(Verdict.INFEASIBLE, None, float("inf"), float("inf"))
        bound = float(model.ObjBound) if integer.any() else float(model.ObjVal) if model.SolCount else -float("inf")
        if model.SolCount == 0:
            return Answer(Verdict.UNKNOWN, None, float("inf"), bound)
        verdict = Verdict.OPTIMAL if model.Status == gurobi.GRB.OPTIMAL else Verdict.FEASIBLE
        return Answer(verdict, np.array(x.X), float(model.ObjVal), bound)
