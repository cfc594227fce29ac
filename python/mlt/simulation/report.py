"""Alternatives of ``mlt plan auto``, each timed in the simulator.

Large jobs are scaled down. The gradients of all alternatives are divided by one factor, the smallest that keeps every
alternative within ``packet_hops``; the simulated times are multiplied by it. This also multiplies times that do not
grow with the bytes (round trips, initial queues, the start of the rate control). Their weight is then larger than in
the full job, most of all in a ring of many workers, where every step waits for the previous one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from mlt.planners.auto.alternatives import Alternative
from mlt.planners.cluster import Cluster, Job
from mlt.planners.plan import Estimate, JobPlan, Plan
from mlt.planners.plan.effective import effective_cluster, has_circuit_switches, without_links
from mlt.simulation.planned_circuits import planned_ways
from mlt.simulation.planned_routes import routed_workload
from mlt.simulation.scenario import Outcome, Scenario, scenario_of
from mlt.simulation.workload import NotSimulated, Workload, hosts_of, transfers_of

DEFAULT_PACKET_HOPS = 2_000_000


@dataclass(frozen=True, kw_only=True)
class SimulatedTime:
    """One alternative: its iteration's communication time in seconds, scaled back, or the reason for its absence."""

    name: str
    time: float | None = None
    reason: str = ""
    outcome: Outcome | None = None

    def estimate(self) -> Estimate | None:
        """A line of the plan file; None without a time."""
        if self.time is None:
            return None
        return Estimate(name=self.name, iteration_time=self.time, source="simulator", reason=self.reason)


@dataclass(frozen=True, kw_only=True)
class SimulationReport:
    """Times in the order of the alternatives; the job was simulated with 1 / ``divisor`` of its bytes."""

    times: tuple[SimulatedTime, ...]
    divisor: float
    packet_hops: int

    @property
    def rule(self) -> str:
        """Description of the scaling."""
        if self.divisor <= 1:
            return "simulated with all its bytes"
        return (
            f"simulated with 1/{self.divisor:.1f} of its bytes, times multiplied back (fixed delays with them): "
            f"at most {self.packet_hops / 1e6:g} million packet hops for each alternative"
        )


def network_of(cluster: Cluster, plan: Plan) -> Cluster:
    """The network on which ``plan``'s alternatives were timed: planned circuits are cables in it."""
    if has_circuit_switches(cluster) and not plan.circuits:
        return without_links(cluster)
    return effective_cluster(cluster, plan.circuits)


def workload_of(network: Cluster, job: Job, plan: JobPlan, *, size: float) -> Workload:
    """One iteration of ``plan`` on ``network`` with ``size`` bytes of gradients per worker.

    Raises:
        NotSimulated: the plan lacks information.
    """
    if plan.strategy in ("routes", "tree-and-routes"):
        return routed_workload(plan, size=size)
    transfers = tuple(transfers_of(network, job, plan, size=size))
    if plan.strategy == "circuits" and plan.placement is not None and network.links:
        return Workload(transfers, ways=planned_ways(network, job, plan.placement))
    return Workload(transfers)


def _on(scenario: Scenario, workload: Workload) -> Scenario:
    """``scenario`` with the aggregators, routes and rates of ``workload``."""
    try:
        return scenario.with_routes(workload.aggregators, workload.ways, dict(workload.rates))
    except ValueError as error:
        raise NotSimulated(str(error)) from None


def simulate_alternatives(
    cluster: Cluster,
    job: Job,
    alternatives: Sequence[Alternative],
    *,
    plan: Plan,
    packet_hops: int = DEFAULT_PACKET_HOPS,
    seed: int = 0,
    progress: Callable[[int, float], object] | None = None,
) -> SimulationReport:
    """Simulate one iteration of every alternative.

    Args:
        plan: the plan with the circuits, if any.
        packet_hops: limit per alternative, in data packets times cables; larger jobs are scaled down.
        progress: receives the alternative's index and the fraction of its transfers that has arrived.

    Raises:
        ValueError: the graph cannot be simulated.
        RuntimeError: a transfer failed.
    """
    if packet_hops < 1:
        raise ValueError(f"packet_hops is {packet_hops}; expected at least 1")
    network = network_of(cluster, plan)
    scenario = scenario_of(network, hosts_of(job), seed=seed)
    divisor = 1.0
    skipped: dict[int, str] = {}
    for index, alternative in enumerate(alternatives):
        try:
            whole = workload_of(network, job, alternative.sections, size=job.model_size)
            hops = _on(scenario, whole).packet_hops(whole.transfers)
        except NotSimulated as error:
            skipped[index] = str(error)
            continue
        divisor = max(divisor, hops / packet_hops)
    times = []
    known: dict[Workload, Outcome] = {}  # planners may find the same plan twice
    for index, alternative in enumerate(alternatives):
        if index in skipped:
            times.append(SimulatedTime(name=alternative.name, reason=skipped[index]))
            continue
        workload = workload_of(network, job, alternative.sections, size=job.model_size / divisor)
        tell = partial(_tell, progress, index, len(workload.transfers))
        if workload not in known:
            known[workload] = _on(scenario, workload).run(workload.transfers, progress=tell)
        tell(len(workload.transfers))
        reason = "" if divisor <= 1 else f"simulated with 1/{divisor:.1f} of the bytes"
        outcome = known[workload]
        times.append(
            SimulatedTime(name=alternative.name, time=outcome.duration * divisor, reason=reason, outcome=outcome)
        )
    return SimulationReport(times=tuple(times), divisor=divisor, packet_hops=packet_hops)


def _tell(progress: Callable[[int, float], object] | None, index: int, all_of_them: int, arrived: int) -> None:
    if progress is not None:
        progress(index, arrived / all_of_them if all_of_them else 1.0)
