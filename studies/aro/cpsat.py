"""The paper's quantised model (constraints 4 to 10 with QSR) for OR-Tools CP-SAT, rates and flows decided together.

CP-SAT multiplies integers natively, so ``y r`` needs no linearisation. The model stays small because, per task and
capacity, one integer ``k = floor(C / r)`` bounds the flows of every link that only this task uses; products appear on
shared links only.

The wheels of OR-Tools and highspy each contain a HiGHS library of the same name and cannot share a process, in any
order. So a child process builds and solves the model (``python -m studies.aro.cpsat``).
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np

from mlt.planners.aro.bounds import Objective, rate_rows
from mlt.planners.aro.contract import Bundled
from mlt.planners.aro.graph import FloatArray, IntArray, TaskGraph
from mlt.planners.aro.highs import Verdict
from mlt.planners.aro.instance import Instance
from studies.aro.quantisation import Quantisation

_WEIGHT_STEPS = 1000  # job weights are rounded up to thousandths of the largest
_GAP = 5e-4  # relative distance to the bound at which the search stops


@dataclass(frozen=True, eq=False)
class Outcome:
    """Rates (Gbit/s) and flows, None if none were found; ``bound`` of the objective, infinite if none is proven."""

    verdict: Verdict
    rates: FloatArray | None
    flows: list[IntArray] | None
    bound: float


def plain(graphs: Sequence[TaskGraph]) -> Bundled:
    """No bundling: one bundle per link."""
    return Bundled(tuple(graphs), np.ones(len(graphs[0].links), dtype=np.int64))


class _Model:
    def __init__(self, bundled: Bundled, step: float, tops: Sequence[int]) -> None:
        self.cp: Any = import_module("ortools.sat.python.cp_model")
        self.model: Any = self.cp.CpModel()
        self.bundled = bundled
        self.step = step
        self.rates = [self.model.new_int_var(0, top, f"r{i}") for i, top in enumerate(tops)]
        self.tops = tops
        self.flows: list[list[Any]] = []
        self.per_link: dict[tuple[int, int], Any] = {}
        users: dict[int, int] = defaultdict(int)
        for graph in bundled.graphs:
            for link in graph.link[~graph.virtual]:
                users[int(link)] += 1
        self.shared = {link for link, count in users.items() if count > 1}
        self.loads: dict[int, list[Any]] = defaultdict(list)
        self.room: dict[int, int] = {}

    def steps(self, capacity: float) -> int:
        return int(np.floor(capacity / self.step * (1 + 1e-12)))

    def max_flows(self, i: int, capacity: int) -> Any:
        """``k`` with ``k r <= capacity``: the flows of task i that one link of this capacity carries."""
        key = (i, capacity)
        if key not in self.per_link:
            limit = int(self.bundled.graphs[i].sources.sum())
            k = self.model.new_int_var(0, limit, f"k{i}_{capacity}")
            product = self.model.new_int_var(0, capacity, f"kr{i}_{capacity}")
            self.model.add_multiplication_equality(product, [k, self.rates[i]])
            self.per_link[key] = k
        return self.per_link[key]

    def add(self, i: int) -> None:
        graph = self.bundled.graphs[i]
        limit = int(graph.sources.sum() + graph.is_inp.sum())
        y = [self.model.new_int_var(0, 1 if graph.virtual[e] else limit, f"y{i}_{e}") for e in range(len(graph.tail))]
        self.flows.append(y)
        supply = np.where(graph.is_inp, 0, graph.supply)
        for v in range(len(graph.nodes)):
            into, out = [y[e] for e in graph.edges_in[v]], [y[e] for e in graph.edges_out[v]]
            if v == graph.ps:
                continue
            if not graph.is_inp[v]:
                self.model.add(sum(out) == sum(into) + int(supply[v]))
            elif graph.forced[v]:
                self.model.add(out[0] == 1)
            else:
                for e in graph.edges_in[v]:
                    most = min(limit, self._feed(graph, int(graph.tail[e])))
                    self.model.add(y[e] <= most * out[0])
        for e in np.flatnonzero(~graph.virtual).tolist():
            link, room = int(graph.link[e]), self.steps(float(graph.capacity[e]))
            width = int(self.bundled.width[link])
            self.model.add(y[e] <= width * self.max_flows(i, room))
            if link in self.shared:
                product = self.model.new_int_var(0, width * room, f"p{i}_{e}")
                self.model.add_multiplication_equality(product, [y[e], self.rates[i]])
                self.loads[link].append(product)
                self.room[link] = width * room

    @staticmethod
    def _feed(graph: TaskGraph, v: int) -> int:
        """Max number of flows that node ``v`` can send: its own sources if no edge enters it, else unlimited."""
        inner = [e for e in graph.edges_in[v] if not (graph.virtual[e] and graph.forced[graph.tail[e]])]
        return int(graph.sources[v]) if not inner else 2**20

    def share_links(self) -> None:
        for link, products in self.loads.items():
            self.model.add(sum(products) <= self.room[link])


@dataclass(frozen=True, kw_only=True)
class Question:
    """One optimisation of equation 3 over quantised rates.

    ``alone``: proven upper bounds of the rates, one per task (Gbit/s). ``start``: initial rates and flows; their edges
    must be those of ``bundled``.
    """

    instance: Instance
    bundled: Bundled
    objective: Objective
    quantisation: Quantisation
    alone: Sequence[float]
    seconds: float
    workers: int = 2
    seed: int = 0
    start: tuple[FloatArray, Sequence[IntArray]] | None = None


def solve_quantised(question: Question) -> Outcome:
    """Solve ``question`` in a child process.

    Raises:
        RuntimeError: the child failed; the message contains its last output.
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
    command = [sys.executable, "-m", "studies.aro.cpsat"]
    child = subprocess.run(command, input=pickle.dumps(question), capture_output=True, env=environment, check=False)
    if child.returncode != 0:
        raise RuntimeError(f"the CP-SAT process failed: {child.stderr.decode(errors='replace').strip()[-500:]}")
    answer = pickle.loads(child.stdout)
    assert isinstance(answer, Outcome)
    return answer


def available() -> bool:
    """Whether OR-Tools is installed."""
    return find_spec("ortools") is not None


def _solve(question: Question) -> Outcome:
    instance, bundled, objective = question.instance, question.bundled, question.objective
    quantisation, start = question.quantisation, question.start
    step = quantisation.step
    tops = [quantisation.steps(rate) for rate in question.alone]
    build = _Model(bundled, step, tops)
    for i in range(len(bundled.graphs)):
        build.add(i)
    build.share_links()
    model = build.model
    for coefficients, limit in rate_rows(instance, bundled.graphs, bundled.width):  # valid rows that speed up the proof
        if all(a == int(a) for a in coefficients.values()):
            model.add(sum(int(a) * build.rates[i] for i, a in coefficients.items()) <= int(limit / step + 1e-9))
    heaviest = max(job.weight for job in instance.jobs)
    weight = {job.name: int(np.ceil(job.weight / heaviest * _WEIGHT_STEPS - 1e-9)) for job in instance.jobs}
    worst = model.new_int_var(0, _WEIGHT_STEPS * sum(tops), "worst")
    total = []
    for job in instance.jobs:
        members = [build.rates[i] for i, (owner, _) in enumerate(instance.tasks) if owner.name == job.name]
        model.add(worst <= weight[job.name] * sum(members))
        total.append(weight[job.name] * sum(members))
    scale = round(1 / objective.mu) if objective.mu > 0 else 1
    goal = scale * worst + (sum(total) if objective.mu > 0 else 0)
    unit = heaviest * step / (_WEIGHT_STEPS * scale)  # one step of ``goal`` in units of the objective
    model.maximize(goal)
    if start is not None:
        for variable, rate in zip(build.rates, start[0], strict=True):
            model.add_hint(variable, int(rate / step + 1e-9))
        for variables, values in zip(build.flows, start[1], strict=True):
            for variable, value in zip(variables, values.tolist(), strict=True):
                model.add_hint(variable, value)
    solver = build.cp.CpSolver()
    solver.parameters.max_time_in_seconds = max(question.seconds, 0.01)
    solver.parameters.num_workers = question.workers
    solver.parameters.relative_gap_limit = _GAP
    solver.parameters.random_seed = question.seed
    status = solver.solve(model)
    if status not in (build.cp.OPTIMAL, build.cp.FEASIBLE):  # its bound may then be only an initial value
        return Outcome(Verdict.UNKNOWN, None, None, float("inf"))
    bound = float(solver.best_objective_bound) * unit
    rates = np.array([solver.value(variable) for variable in build.rates], dtype=np.float64) * step
    flows = [np.array([solver.value(variable) for variable in variables], dtype=np.int64) for variables in build.flows]
    verdict = Verdict.OPTIMAL if status == build.cp.OPTIMAL else Verdict.FEASIBLE
    return Outcome(verdict, rates, flows, bound)


if __name__ == "__main__":
    # The module runs as __main__ here; results must be pickled under its importable name.
    module: Any = import_module("studies.aro.cpsat")
    sys.stdout.buffer.write(pickle.dumps(module._solve(pickle.loads(sys.stdin.buffer.read()))))
