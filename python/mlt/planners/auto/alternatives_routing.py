"""In-network aggregation among ``mlt plan auto``'s alternatives: ARO's routes for all workers, or for ALEPH's heads.

The routing planner needs the extra ``plan`` (an optimiser) and is imported on use. If it is missing, the
alternative is skipped with that reason. A job's gradients are split over its servers in proportion to the rates of
their routes, so one iteration takes the model size over the sum of the rates.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from mlt._shared.extras import how_to_install
from mlt._shared.units import format_rate
from mlt.planners._shared.documents import InputError
from mlt.planners.auto.alternatives import Alternative, Skipped
from mlt.planners.cluster import Cluster, Job
from mlt.planners.plan import JobPlan, Routing, Strategy, new_plan
from mlt.planners.plan.link_load import arc_bandwidths, most_loaded
from mlt.planners.show.explain import job_loads, planned_time

_SEARCH_SECONDS = 20.0


@dataclass(frozen=True)
class _Aro:
    """The four names of the routing planner that are used here."""

    instance_of: Callable[..., Any]
    add_to_plan: Callable[..., Any]
    plan_routes: Callable[..., Any]
    effort: Callable[..., Any]
    verify: Callable[..., Any]
    infeasible: type[Exception]


def _load() -> _Aro:
    convert, multiple, verify, single = (
        import_module(f"mlt.planners.aro.{name}") for name in ("convert", "multiple", "verify", "single")
    )
    found = (convert.instance_of, convert.add_to_plan, multiple.plan_routes, multiple.Effort, verify.verify)
    return _Aro(*found, single.NoRoutesError)


def _why_not(cluster: Cluster, job: Job) -> str | None:
    if not job.servers:
        return "the job has no servers to route to"
    if not any(switch.aggregates for switch in cluster.switches):
        return "no switch of the cluster aggregates"
    return None


def routed(cluster: Cluster, job: Job, *, seed: int, tree: Alternative | None = None) -> Alternative | Skipped:
    """ARO for all workers of ``job``, or (``tree``) for the aggregators and direct workers of an ALEPH plan.

    The routing planner's own independent checker verifies the routes first.
    """
    name = "aro" if tree is None else f"{tree.name} + aro"
    reason = _why_not(cluster, job)
    if reason is not None:
        return Skipped(name, reason)
    try:
        aro = _load()
    except ImportError as error:
        return Skipped(name, f"the routing planner is not installed ({error.name}): {how_to_install('plan')}")
    section = tree.sections.aggregation if tree is not None else None
    heads = job.workers
    if section is not None:
        heads = (*(group.aggregator for group in section.clusters), *section.direct)
    strategy: Strategy = "routes" if section is None else "tree-and-routes"
    try:
        routing = _solve(aro, cluster, job, heads, seed)
    except (InputError, aro.infeasible) as error:
        return Skipped(name, str(error).splitlines()[0])
    return _timed(cluster, job, name, JobPlan(job=job.name, strategy=strategy, aggregation=section, routing=routing))


def _solve(aro: _Aro, cluster: Cluster, job: Job, heads: tuple[str, ...], seed: int) -> Routing:
    """Routes from ``heads`` to every server of the job, verified.

    Raises:
        ArithmeticError: the verifier found a fault, which is a bug of the routing planner; such routes are discarded.
    """
    reduced = cluster.with_job(job.model_copy(update={"workers": heads}))
    instance = aro.instance_of(reduced, jobs=[job.name])
    solution = aro.plan_routes(instance, effort=aro.effort(seconds=_SEARCH_SECONDS, seed=seed))
    report = aro.verify(instance, solution.plans)
    if not report.ok:
        raise ArithmeticError(f"job {job.name!r}: the verifier rejects the routes: {report.faults[0]}")
    plan = aro.add_to_plan(new_plan(reduced, seed=seed), instance, solution, cluster=reduced)
    routing: Routing = plan.job(job.name).routing
    # The search time differs between runs; a plan must not.
    return routing.model_copy(update={"solve_time": None})


def _timed(cluster: Cluster, job: Job, name: str, entry: JobPlan) -> Alternative | Skipped:
    """The alternative with its time on the cluster's links, including the returning results."""
    assert entry.routing is not None
    time = planned_time(entry, job)
    if time is None:
        return Skipped(name, "a task's routes have rate 0")
    total = sum(task.rate for task in entry.routing.tasks)
    proven = all(
        task.rate_bound is not None and task.rate_bound <= task.rate * (1 + 1e-6) for task in entry.routing.tasks
    )
    reason = f"routes carry {format_rate(total)} per worker, {'proven optimal' if proven else 'not proven optimal'}"
    if entry.aggregation is not None and entry.aggregation.time >= time * (1 - 1e-9):
        reason = f"the aggregation tree; its {reason}"
    busiest = most_loaded(job_loads(cluster, entry), arc_bandwidths(cluster))
    if busiest is not None and busiest[1] > 1 + 1e-6:
        (a, b), utilisation = busiest
        return Alternative(
            name=name,
            time=time * utilisation,
            reason=f"link {a} to {b}, where results flow back against other gradients",
            sections=entry,
        )
    return Alternative(name=name, time=time, reason=reason, sections=entry)
