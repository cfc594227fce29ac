"""``mlt plan auto --simulate``: the alternatives in the simulator, with a progress bar on standard error."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from mlt._shared.units import format_time
from mlt.planners.auto.ranking import AutoResult
from mlt.planners.cluster import Cluster, Job
from mlt.planners.plan import Plan

if TYPE_CHECKING:
    from mlt.simulation.report import SimulationReport


def simulate(cluster: Cluster, job: Job, result: AutoResult, *, million_hops: float, seed: int) -> SimulationReport:
    """Time every alternative of ``result`` in the simulator.

    Raises:
        ValueError: the native library is missing, the graph cannot be simulated, or a transfer failed.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    try:
        import_module("mlt._core")
    except ImportError as error:
        raise ValueError(f"--simulate needs the native library, which does not load here: {error}") from None
    from mlt.simulation.report import simulate_alternatives

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("simulating", total=len(result.ranked))

        def show(index: int, part: float) -> None:
            bar.update(task, completed=index + part, description=f"simulating {result.ranked[index].name}")

        try:
            return simulate_alternatives(
                cluster,
                job,
                result.ranked,
                plan=result.plan,
                packet_hops=round(million_hops * 1e6),
                seed=seed,
                progress=show,
            )
        except (RuntimeError, ValueError) as error:
            raise ValueError(f"--simulate: {error}") from None


def with_estimates(plan: Plan, job: Job, report: SimulationReport) -> Plan:
    """``plan`` with the simulator's times after the model's times."""
    entry = plan.job(job.name)
    found = [estimate for time in report.times if (estimate := time.estimate()) is not None]
    return plan.with_job(entry.model_copy(update={"estimates": (*entry.estimates, *found)}))


def notes(report: SimulationReport) -> list[str]:
    """Notes on the simulated times for the reader of the table."""
    lines = [report.rule]
    why: dict[str, list[str]] = {}
    for time in report.times:
        if time.time is None:
            why.setdefault(time.reason, []).append(time.name)
    lines += [f"not simulated: {', '.join(names)}: {reason}" for reason, names in why.items()]
    simulated = [(time.time, time.name) for time in report.times if time.time is not None]
    if simulated:
        seconds, name = min(simulated, key=lambda pair: pair[0])
        lines.append(f"fastest in the simulator: {name}, {format_time(seconds)}")
    return lines
