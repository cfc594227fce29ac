"""QSR: rates are multiples of ``fastest / levels``, and capacities are rounded down to such multiples (section III-C).

Routes that exist at some rates also exist at any lower ones. So the search runs with real rates on the rounded
capacities, and its rates are then rounded down. For one task this is the optimum of QSR.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from mlt.planners.aro.bounds import Objective
from mlt.planners.aro.graph import FloatArray, TaskGraph
from mlt.planners.aro.instance import Instance
from mlt.planners.aro.multiple import Solution
from mlt.planners.aro.single import NoRoutesError


@dataclass(frozen=True)
class Quantisation:
    """``levels`` is N of the paper, ``fastest`` the capacity of the fastest link (Gbit/s)."""

    levels: int
    fastest: float

    @property
    def step(self) -> float:
        return self.fastest / self.levels

    def steps(self, rate: float) -> int:
        """Whole steps in ``rate``."""
        return int(np.floor(rate / self.step + 1e-9))

    def graphs(self, graphs: Sequence[TaskGraph]) -> list[TaskGraph]:
        """``graphs`` with capacities of ``floor(b N / b-bar)`` steps."""
        return [replace(graph, capacity=self._floor(graph.capacity)) for graph in graphs]

    def _floor(self, capacity: FloatArray) -> FloatArray:
        floored: FloatArray = np.floor(capacity / self.step * (1 + 1e-12)) * self.step
        return floored

    def rounded(self, instance: Instance, solution: Solution, objective: Objective) -> Solution:
        """``solution`` with its rates rounded down to whole steps.

        Raises:
            NoRoutesError: no rate reaches a whole step.
        """
        plans = tuple(replace(plan, rate=self.steps(plan.rate) * self.step) for plan in solution.plans)
        value = objective.value(instance, [plan.rate for plan in plans])
        if value <= 0:
            raise NoRoutesError(f"no routes fit at a rate of a whole step ({self.step:g} Gbit/s)")
        return replace(solution, plans=plans, value=value)
