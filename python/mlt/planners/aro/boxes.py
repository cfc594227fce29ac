"""Several tasks together: better routes and a proven bound at once, by branch and bound over boxes of rates.

Rates that can be routed can also be routed at any lower rates. So if the lowest corner of a box cannot be routed, no
point of the box can. One integer programme with fixed rates then rules out the whole box; it is linear, whereas rates
as variables would multiply flows. The first box extends to each task's proven optimum alone. To beat the best known
plan, every job must reach a certain total. This raises the lowest corner: a task must provide what the job's other
tasks cannot. Corners that cannot be routed shrink the box, task by task; if that stalls, the box is split. A corner
that can be routed gives routes. The best rates on them are a plan, which may be better than the best known one.

Each corner is first checked by a relaxation (``contract``'s bundles, fractional flows, whole pipelines), then by the
joint programme itself. A box that remains when time runs out still counts in the bound.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from random import Random

import numpy as np

from mlt.planners.aro.bounds import Objective, best_rates, bound_rates
from mlt.planners.aro.contract import Bundled, contract
from mlt.planners.aro.graph import FloatArray, IntArray, TaskGraph
from mlt.planners.aro.highs import Verdict
from mlt.planners.aro.instance import Instance
from mlt.planners.aro.joint import route_jointly, solve_together

TOLERANCE = 5e-4  # relative: boxes that promise a smaller gain over the best known value are skipped
_ABOVE = 1 + 1e-6  # just above a rate that divides a link's capacity, the link carries one flow less
_PROGRAMME_SECONDS = 3.0  # of one joint programme, or
_PROGRAMME_SHARE = 0.15  # of the remaining time
_CLIMB_SHARE = 0.5  # of the time, for better routes before boxes
_DRAWS = 5  # attempts to split a total before it counts as too high


@dataclass(frozen=True, eq=False)
class Routed:
    """Flows per edge, task by task, and the best rates on them."""

    rates: FloatArray
    flows: list[IntArray]


@dataclass(frozen=True, eq=False)
class Box:
    """Rates from ``low`` to ``high``, task by task."""

    low: FloatArray
    high: FloatArray


class Search:
    """Boxes that may contain a plan better than the best known one; ``best`` is None until one is found."""

    def __init__(
        self,
        instance: Instance,
        graphs: Sequence[TaskGraph],
        objective: Objective,
        *,
        seconds: float,
        seed: int = 0,
    ) -> None:
        self.instance = instance
        self.graphs = graphs
        self.objective = objective
        self.value = 0.0
        self.best: Routed | None = None
        self.random = Random(seed)
        self.deadline = time.monotonic() + seconds
        self.bundled: Bundled = contract(graphs)
        self.closed: list[FloatArray] = []  # corners without routes: no point above them has routes
        owners = [job.name for job, _ in instance.tasks]
        self.members = [
            (job.weight, np.array([i for i, owner in enumerate(owners) if owner == job.name])) for job in instance.jobs
        ]

    @property
    def goal(self) -> float:
        return self.value * (1 + TOLERANCE)

    @property
    def left(self) -> float:
        return self.deadline - time.monotonic()

    def run(self, alone: Sequence[float], *, value: float, bound: float, seconds: float) -> float:
        """Search until ``bound`` is met or time runs out; returns the bound proven by then.

        Args:
            alone: proven upper bounds of the tasks' rates, each alone.
            value: objective value of the best known plan.
        """
        self.value = value
        self.deadline = min(self.deadline, time.monotonic() + seconds)
        highest = np.array(alone, dtype=np.float64)
        self._climb(highest)
        ticket = count()
        heap = [(-bound, next(ticket), Box(np.zeros(len(highest)), highest))]
        while heap and -heap[0][0] > self.goal and self.left > 0:
            promise, number, box = heapq.heappop(heap)
            rest = self._reduced(box, cut=number == 0)
            for part in () if rest is None else self._halves(rest):
                heapq.heappush(heap, (max(promise, -self._promise(part)), next(ticket), part))
        return min(bound, max(-heap[0][0] if heap else 0.0, self.goal) * _ABOVE)

    def _climb(self, highest: FloatArray) -> None:
        """Look for better routes: totals per job between the best known and the bound, split over tasks at random."""
        low = self.value
        high = min(weight * float(highest[members].sum()) for weight, members in self.members)
        until = time.monotonic() + _CLIMB_SHARE * self.left
        while high > low * (1 + 4 * TOLERANCE) and time.monotonic() < until:
            total = (low + high) / 2
            for turn in range(_DRAWS):
                rates = self._split(total, highest, even=turn == 0)
                if self._can_route(rates) or time.monotonic() >= until:
                    break
            else:
                high = total
                continue
            low = max(total, self.value)

    def _split(self, total: float, highest: FloatArray, *, even: bool) -> FloatArray:
        """Rates with which every job reaches ``total``: in proportion to the highest, or most at whole parts."""
        rates = highest.copy()
        for weight, members in self.members:
            left, room = total / weight, float(highest[members].sum())
            if even:
                rates[members] *= min(1.0, left / room)
                continue
            for i in self.random.sample(members.tolist(), len(members)):
                room -= float(highest[i])
                minimum, maximum = max(left - room, 0.0), min(float(highest[i]), left)
                steps = [*self._whole_parts(minimum, maximum), maximum] if maximum > minimum else [maximum]
                rates[i] = self.random.choice(steps[-4:]) if room > 0 else maximum
                left -= float(rates[i])
        split: FloatArray = np.maximum(rates, 1e-3)
        return split

    def _promise(self, box: Box) -> float:
        """Upper bound of the objective in ``box``, from the certain loads of links."""
        return bound_rates(self.instance, self.graphs, box.high.tolist(), self.objective).value

    def _patience(self) -> float:
        return max(0.0, min(self.left, max(_PROGRAMME_SECONDS, _PROGRAMME_SHARE * self.left)))

    # ---- corners ----

    def _can_route(self, rates: FloatArray) -> bool:
        """Whether routes were found at ``rates``; stores a proof that none exist."""
        if not self.may_route(rates):
            return False
        verdict, flows = route_jointly(self.graphs, rates, seconds=self._patience())
        if verdict is Verdict.INFEASIBLE:
            self.closed.append(rates.copy())
        if flows is None:
            return False
        found = best_rates(self.instance, self.graphs, flows, self.objective)
        value = self.objective.value(self.instance, found.tolist())
        if value > self.value:
            self.value, self.best = value, Routed(found, flows)
        return True

    def may_route(self, rates: FloatArray) -> bool:
        """False if the relaxation proves that no routes exist at ``rates``."""
        if self._is_closed(rates):
            return False
        if self.left <= 0 or self._relaxation(rates) is not Verdict.INFEASIBLE:
            return True
        self.closed.append(rates.copy())
        return False

    def _is_closed(self, rates: FloatArray) -> bool:
        return any(bool((rates >= corner).all()) for corner in self.closed)

    def _relaxation(self, rates: FloatArray) -> Verdict:
        graphs, width = self.bundled.graphs, self.bundled.width
        whole = np.concatenate([graph.virtual for graph in graphs])
        return solve_together(graphs, rates, whole, seconds=self._patience(), width=width).verdict

    # ---- boxes ----

    def _lifted(self, box: Box) -> Box | None:
        """``box`` without corners that miss the goal whatever the other tasks do; None if it is empty."""
        low = box.low.copy()
        weighted = sum(weight * float(box.high[members].sum()) for weight, members in self.members)
        minimum = self.goal - self.objective.mu * weighted
        for weight, members in self.members:
            spare = float(box.high[members].sum()) - minimum / weight
            if spare < 0:
                return None
            low[members] = np.maximum(low[members], box.high[members] - spare)
        return Box(low, box.high)

    def _reduced(self, box: Box, *, cut: bool) -> Box | None:
        """``box`` without corners that miss the goal or (``cut``) have no routes; None if it is empty."""
        lifted = self._lifted(box)
        if lifted is None or self._is_empty(lifted):
            return None
        if not cut:
            return lifted
        high = lifted.high.copy()
        for i in range(len(high)):
            high[i] = self._cut(lifted.low, high, i)
        return self._lifted(Box(lifted.low, high))

    def _is_empty(self, box: Box) -> bool:
        return not self._can_route(box.low) and self._is_closed(box.low)

    def _cut(self, low: FloatArray, high: FloatArray, i: int) -> float:
        """The highest rate of task i that the others' lowest rates may leave."""
        minimum, maximum = float(low[i]), float(high[i])
        trial = low.copy()
        trial[i] = maximum
        if maximum <= minimum * _ABOVE or self.may_route(trial):
            return maximum
        steps = self._whole_parts(minimum, maximum)
        first, last = 0, len(steps)  # steps before `first` may be routable, steps from `last` on are not
        while first < last:
            middle = (first + last) // 2
            trial[i] = steps[middle] * _ABOVE
            if self.may_route(trial):
                first = middle + 1
            else:
                last = middle
        return min(maximum, steps[last] * _ABOVE) if last < len(steps) else maximum

    def _whole_parts(self, low: float, high: float) -> list[float]:
        """Rates in the open interval of which a link's capacity is a multiple: where routes change."""
        parts = self.instance.fastest_gbps / np.arange(1, 201)
        return sorted(float(part) for part in parts if low * _ABOVE < part < high / _ABOVE)

    def _halves(self, box: Box) -> tuple[Box, Box]:
        """``box`` split across its relatively longest side, at a divisor of a link's capacity if the side contains one.

        The split omits the sliver just above the divisor. Its points, lowered to the divisor, are in the lower half;
        this loses less than ``_ABOVE``, for which the final bound compensates.
        """
        i = int(np.argmax((box.high - box.low) / np.maximum(box.high, 1e-12)))
        steps = self._whole_parts(float(box.low[i]), float(box.high[i]))
        middle = steps[len(steps) // 2] if steps else float(box.low[i] + box.high[i]) / 2
        low, high = box.low.copy(), box.high.copy()
        low[i], high[i] = middle * (_ABOVE if steps else 1.0), middle
        return Box(low, box.high), Box(box.low, high)
