"""The open solver HiGHS behind one function: solves a linear programme with some integers."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from enum import Enum
from importlib import import_module
from typing import Any

import numpy as np

from mlt.planners.aro.flow import BoolArray
from mlt.planners.aro.graph import FloatArray, IntArray


def _highspy() -> Any:
    """Loaded on first use: its wheel and OR-Tools' have HiGHS libraries of one name, which cannot share a process."""
    return import_module("highspy")


@contextmanager
def _silence() -> Iterator[None]:
    """Without standard output of C code: since release 1.16 the first solver of a process prints a banner there.

    No option of HiGHS prevents it, because options belong to a solver that exists.
    """
    libc = ctypes.CDLL(None)
    libc.fflush(None)
    kept, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 1)
        yield
    finally:
        libc.fflush(None)
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)


class Verdict(Enum):
    """Results of a solver."""

    OPTIMAL = "optimal"
    FEASIBLE = "feasible"
    INFEASIBLE = "infeasible"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Answer:
    """Verdict, values (None without a solution), objective value and proven bound."""

    verdict: Verdict
    x: FloatArray | None
    objective: float
    bound: float


class Rows:
    """Collects sparse rows ``low <= a x <= high``."""

    def __init__(self) -> None:
        self._columns: list[IntArray] = []
        self._values: list[FloatArray] = []
        self.low: list[float] = []
        self.high: list[float] = []

    def add(self, columns: IntArray, values: FloatArray, low: float, high: float) -> None:
        self._columns.append(np.asarray(columns, dtype=np.int64))
        self._values.append(np.asarray(values, dtype=np.float64))
        self.low.append(low)
        self.high.append(high)

    def compressed(self) -> tuple[IntArray, IntArray, FloatArray]:
        """Row starts, column indices and values, row by row."""
        starts = np.cumsum([0, *(len(columns) for columns in self._columns)])
        return starts, np.concatenate([*self._columns, []]).astype(np.int64), np.concatenate([*self._values, []])


# If set, called in place of HiGHS (``studies.aro.gurobi``), with the arguments of ``solve``.
OTHER: ContextVar[Callable[..., Answer] | None] = ContextVar("other_solver", default=None)


def solve(
    cost: FloatArray,
    lower: FloatArray,
    upper: FloatArray,
    integer: BoolArray,
    rows: Rows,
    *,
    seconds: float,
    gap: float = 0.0,
    start: FloatArray | None = None,
) -> Answer:
    """Minimise ``cost @ x``. ``start`` is an initial feasible point; ``seconds`` limits the search."""
    if (other := OTHER.get()) is not None:
        return other(cost, lower, upper, integer, rows, seconds=seconds, gap=gap, start=start)
    highspy = _highspy()
    with _silence():
        solver = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    solver.setOptionValue("time_limit", float(seconds))
    solver.setOptionValue("mip_rel_gap", float(gap))
    solver.setOptionValue("threads", 1)
    model = highspy.HighsLp()
    model.num_col_, model.num_row_ = len(cost), len(rows.low)
    model.col_cost_, model.col_lower_, model.col_upper_ = cost, lower, upper
    model.row_lower_, model.row_upper_ = np.array(rows.low), np.array(rows.high)
    model.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    model.a_matrix_.start_, model.a_matrix_.index_, model.a_matrix_.value_ = rows.compressed()
    if integer.any():
        kinds = (highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger)
        model.integrality_ = [kinds[int(flag)] for flag in integer]
    solver.passModel(model)
    if start is not None:
        solution = highspy.HighsSolution()
        solution.col_value = list(start)
        solver.setSolution(solution)
    solver.run()
    return _answer(solver, bool(integer.any()))


def _answer(solver: Any, mixed: bool) -> Answer:
    highspy = _highspy()
    status = solver.getModelStatus()
    info = solver.getInfo()
    if status == highspy.HighsModelStatus.kInfeasible:
        return Answer(Verdict.INFEASIBLE, None, float("inf"), float("inf"))
    found = info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
    bound = info.mip_dual_bound if mixed else info.objective_function_value
    if not found:
        return Answer(Verdict.UNKNOWN, None, float("inf"), bound)
    x = np.array(solver.getSolution().col_value)
    verdict = Verdict.OPTIMAL if status == highspy.HighsModelStatus.kOptimal else Verdict.FEASIBLE
    return Answer(verdict, x, info.objective_function_value, bound)
