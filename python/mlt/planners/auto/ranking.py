"""``mlt plan auto``: tries every planner on one job, ranks the alternatives and keeps the best one.

Planners that are not installed are listed as skipped. Absent: the simulator, which the command adds to the result
(``mlt.simulation``); the ranking uses the model only.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mlt._shared.units import format_time
from mlt.planners.auto.alternatives import Alternative, Skipped, host_alternatives
from mlt.planners.auto.alternatives_routing import routed
from mlt.planners.auto.alternatives_topology import Ground, prepare_ground
from mlt.planners.auto.switch_thresholds import plan_thresholds
from mlt.planners.cluster import Cluster, Job
from mlt.planners.plan import InfeasibleError, Plan, new_plan


@dataclass(frozen=True, kw_only=True)
class AutoResult:
    """Alternatives from fastest to slowest, skipped ones with the reason, and the plan of the fastest."""

    ranked: tuple[Alternative, ...]
    skipped: tuple[Skipped, ...]
    plan: Plan
    reason: str


def plan_auto(cluster: Cluster, job: Job, *, seed: int = 0, layers_file: Path | None = None) -> AutoResult:
    """Rank every alternative for ``job`` by the analytic model.

    Args:
        layers_file: The model's layers (JSON, as ``mlt.switch_configs`` reads them), which determine the thresholds.

    Raises:
        InfeasibleError: no alternative is possible; the message names the bottleneck.
    """
    ranked: list[Alternative] = []
    skipped: list[Skipped] = []
    ground = prepare_ground(cluster, job, new_plan(cluster, seed=seed))
    if ground.outcome is not None:
        _sort(ground.outcome, ranked, skipped)
    network = ground.cluster
    for run in host_alternatives(network, job, seed=seed):
        _sort(run(), ranked, skipped)
    _sort(routed(network, job, seed=seed), ranked, skipped)
    trees = [alternative for alternative in ranked if alternative.sections.aggregation is not None]
    if trees and any(switch.aggregates for switch in network.switches):
        # Route one tree only: the fastest has the fewest or widest streams.
        _sort(routed(network, job, seed=seed, tree=min(trees, key=lambda tree: tree.time)), ranked, skipped)
    if not ranked:
        raise InfeasibleError(job=job.name, constraint="nothing fits", message="; ".join(s.reason for s in skipped))
    # A stable sort: on equal times the simpler alternative, which comes first, wins.
    ranked.sort(key=lambda alternative: round(alternative.time, 9))
    return AutoResult(
        ranked=tuple(ranked),
        skipped=tuple(skipped),
        plan=_keep(cluster, ground, ranked, layers_file),
        reason=explain_choice(ranked),
    )


def _keep(cluster: Cluster, ground: Ground, ranked: list[Alternative], layers_file: Path | None) -> Plan:
    """The basis's plan with the best alternative's sections."""
    best = ranked[0].sections
    placed = ground.plan.job(best.job)
    entry = best.model_copy(
        update={
            "placement": best.placement or placed.placement,
            "notes": best.notes or placed.notes,
            "estimates": tuple(alternative.estimate() for alternative in ranked),
        }
    )
    plan = ground.plan.with_job(entry)
    found = plan_thresholds(cluster, layers_file)
    if isinstance(found, str):
        note = f"thresholds and switch policy are not planned: {found}"
        return plan.model_copy(update={"notes": (*plan.notes, note)})
    return plan.model_copy(update={"thresholds": found.thresholds, "switch_policy": found.policy})


def _sort(outcome: Alternative | Skipped, ranked: list[Alternative], skipped: list[Skipped]) -> None:
    if isinstance(outcome, Skipped):
        skipped.append(outcome)
    else:
        ranked.append(outcome)


def explain_choice(ranked: list[Alternative]) -> str:
    """The reason for the first rank, in one or two sentences."""
    best = ranked[0]
    if len(ranked) == 1:
        return f"{best.name} is the only alternative; it takes {format_time(best.time)}, bound by {best.reason}."
    second = ranked[1]
    if second.time <= best.time * (1 + 1e-9):
        lead = f"{best.name} and {second.name} tie at {format_time(best.time)}; the simpler one is kept"
    else:
        factor = second.time / best.time if best.time > 0 else float("inf")
        lead = f"{best.name} takes {format_time(best.time)}, {factor:.2f} times faster than {second.name}"
    return f"{lead}. {best.name} is bound by: {best.reason}; {second.name} by: {second.reason}."
