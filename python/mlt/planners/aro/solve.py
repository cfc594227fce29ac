"""One call for all scenarios: accelerations, the search, and plans that the caller can verify, export or store."""

from __future__ import annotations

import time
from dataclasses import replace

from mlt.planners.aro.accelerate import Accelerations, drop_unused, only_programmable, task_graphs
from mlt.planners.aro.bounds import Objective
from mlt.planners.aro.instance import Instance
from mlt.planners.aro.multiple import Effort, Solution, solve_tasks
from mlt.planners.aro.single import Infeasible


def plan_routes(
    instance: Instance,
    *,
    accelerations: Accelerations | None = None,
    objective: Objective | None = None,
    effort: Effort | None = None,
) -> Solution:
    """Routes of all tasks by equation 3 (equation 1 for one task, 2 for one job).

    With APP or SRO the solution's ``bound`` holds for the pruned graphs only.

    Raises:
        Infeasible: a task has no routes.
    """
    begin = time.monotonic()
    accelerations = accelerations or Accelerations()
    quantisation = accelerations.quantisation(instance)
    graphs = task_graphs(instance, accelerations)
    first: Solution | None = None
    if accelerations.sro:
        stages = [only_programmable(instance, graph) for graph in graphs]
        whole = [stage for stage in stages if stage is not None]
        if len(whole) == len(graphs):
            try:
                first = solve_tasks(
                    instance, objective=objective, quantisation=quantisation, effort=effort, graphs=whole
                )
            except Infeasible:
                first = None
            if first is not None:
                pairs = zip(graphs, whole, first.flows, strict=True)
                graphs = [drop_unused(instance, graph, stage, y) for graph, stage, y in pairs]
    second = solve_tasks(instance, objective=objective, quantisation=quantisation, effort=effort, graphs=graphs)
    best = first if first is not None and first.value > second.value else second
    return replace(best, bound=max(best.bound, second.bound), seconds=time.monotonic() - begin)
