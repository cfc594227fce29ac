"""In-network aggregation among ``mlt plan auto``'s alternatives: ARO's routes for all workers, or for ALEPH's heads.

The routing planner needs the extra ``plan`` (scipy and HiGHS, which it imports on use). If it is missing, the
alternative is skipped with that reason. A job's gradients are split over its servers in proportion to the rates of
their routes, so one iteration takes the model size over the sum of the rates.
"""

from __future__ import annotations

from mlt._shared.extras import how_to_install
from mlt._shared.units import format_rate
from mlt.planners._shared.documents import InputError
from mlt.planners.aro.convert import add_to_plan, instance_of
from mlt.planners.aro.multiple import Effort, plan_routes
from mlt.planners.aro.single import NoRoutesError
from mlt.planners.aro.verify import verify
from mlt.planners.auto.alternatives import Alternative, Skipped
from mlt.planners.cluster import Cluster, Job
from mlt.planners.plan import JobPlan, Routing, Strategy, new_plan
from mlt.planners.plan.link_load import arc_bandwidths, most_loaded
from mlt.planners.show.explain import job_loads, planned_time

_SEARCH_SECONDS = 20.0


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
    section = tree.sections.aggregation if tree is not None else None
    heads = job.workers
    if section is not None:
        heads = (*(group.aggregator for group in section.clusters), *section.direct)
    strategy: Strategy = "routes" if section is None else "tree-and-routes"
    try:
        routing = _solve(cluster, job, heads, seed)
    except ImportError as error:
        return Skipped(name, f"the routing planner is not installed ({error.name}): {how_to_install('plan')}")
    except (InputError, NoRoutesError) as error:
        return Skipped(name, str(error).splitlines()[0])
    return _timed(cluster, job, name, JobPlan(job=job.name, strategy=strategy, aggregation=section, routing=routing))


def _solve(cluster: Cluster, job: Job, heads: tuple[str, ...], seed: int) -> Routing:
    """Routes from ``heads`` to every server of the job, verified.

    Raises:
        ArithmeticError: the verifier found a fault, which is a bug of the routing planner; such routes are discarded.
    """
    reduced = cluster.with_job(job.model_copy(update={"workers": heads}))
    instance = instance_of(reduced, jobs=[job.name])
    solution = plan_routes(instance, effort=Effort(seconds=_SEARCH_SECONDS, seed=seed))
    report = verify(instance, solution.plans)
    if not report.ok:
        raise ArithmeticError(f"job {job.name!r}: the verifier rejects the routes: {report.faults[0]}")
    plan = add_to_plan(new_plan(reduced, seed=seed), instance, solution, cluster=reduced)
    routing = plan.job(job.name).routing
    assert routing is not None
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
