"""PSNet in ``mlt plan auto``: circuits come first, because they decide the links of every other alternative.

The topology planner needs the extra ``plan`` and is imported when the cluster has circuit switches. Its time is
T_push of PSNet's equations: push and pull overlap on full-duplex links, as in every other alternative.
"""

from __future__ import annotations

from dataclasses import dataclass

from mlt._shared.extras import how_to_install
from mlt.planners._shared.documents import InputError
from mlt.planners.auto.alternatives import Alternative, Skipped
from mlt.planners.cluster import Cluster, Job
from mlt.planners.plan import Plan
from mlt.planners.plan.effective import effective_cluster, has_circuit_switches, without_links
from mlt.planners.psnet.checks import TopologyError

_NAME = "parameter server over psnet routes"


@dataclass(frozen=True)
class Ground:
    """Basis of the other alternatives: the network after circuits, and the plan with these circuits."""

    cluster: Cluster
    plan: Plan
    outcome: Alternative | Skipped | None  # None without circuit switches


def prepare_ground(cluster: Cluster, job: Job, plan: Plan) -> Ground:
    """Plan circuits for all jobs of ``cluster`` if it has circuit switches."""
    if not has_circuit_switches(cluster):
        return Ground(cluster, plan, None)
    try:
        from mlt.planners.psnet.plan_section import plan_topology, with_topology
    except ImportError as error:
        reason = f"the topology planner is not installed ({error.name}): {how_to_install('plan')}"
        return Ground(without_links(cluster), plan, Skipped(_NAME, f"{reason}; links are left out of all times"))
    try:
        made = plan_topology(cluster)
        planned = with_topology(plan, made)
    except (InputError, TopologyError) as error:
        reason = f"{str(error).splitlines()[0]}; links are left out of all times"
        return Ground(without_links(cluster), plan, Skipped(_NAME, reason))
    time = made.seconds[job.name]
    alternative = Alternative(
        name=_NAME,
        time=time,
        reason="the busiest link of the planned circuits and routes, all jobs at once",
        sections=planned.job(job.name).model_copy(update={"strategy": "circuits"}),
    )
    return Ground(effective_cluster(cluster, planned.circuits), planned, alternative)
