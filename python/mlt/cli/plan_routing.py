"""``mlt plan route``: aggregator-aware routes for the jobs of a cluster file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from mlt.planners.cluster import read_cluster
from mlt.planners.documents import InputError
from mlt.planners.plan import dump_plan, new_plan, read_plan
from mlt.planners.routing.accelerate import Accelerations
from mlt.planners.routing.baselines import plan_aggtree, plan_random
from mlt.planners.routing.convert import add_to_plan, instance_of
from mlt.planners.routing.export import Addresses, openflow_rules, rule_lines, srv6_lines
from mlt.planners.routing.instance import Instance
from mlt.planners.routing.multiple import Effort, Solution
from mlt.planners.routing.routes import TaskPlan
from mlt.planners.routing.single import Infeasible
from mlt.planners.routing.solve import plan_routes
from mlt.planners.routing.verify import verify

app = typer.Typer(add_completion=False, help="Aggregator-aware routes (ARO) for in-network aggregation.")


@app.command()
def route(
    cluster_file: Annotated[Path, typer.Argument(metavar="CLUSTER", help="Cluster file (YAML or JSON)")],
    job: Annotated[list[str] | None, typer.Option(help="Only these jobs; default: all that have servers")] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write or update this plan file")] = None,
    sro: Annotated[bool, typer.Option("--sro", help="Staged routing optimisation")] = False,
    app_share: Annotated[float | None, typer.Option("--app", help="Keep this share of aggregators (alpha)")] = None,
    qsr_levels: Annotated[int | None, typer.Option("--qsr", help="Quantise rates to this many levels (N)")] = None,
    seconds: Annotated[float, typer.Option(min=0.1, help="Time limit of the search")] = 60.0,
    seed: Annotated[int, typer.Option(help="Of the search order and of the baselines")] = 0,
    openflow: Annotated[Path | None, typer.Option(help="Write OpenFlow rules, one per line")] = None,
    srv6: Annotated[Path | None, typer.Option(help="Write SRv6 segment lists, one per line")] = None,
) -> None:
    """Route every worker's gradients through the aggregators, verify the routes and say what they gain."""
    console = Console()
    try:
        cluster = read_cluster(cluster_file)
        instance = instance_of(cluster, jobs=job)
        plan = read_plan(output) if output is not None and output.exists() else new_plan(cluster, seed=seed)
        accelerations = Accelerations(sro=sro, app_share=app_share, qsr_levels=qsr_levels)
        solution = plan_routes(instance, accelerations=accelerations, effort=Effort(seconds=seconds, seed=seed))
    except (InputError, Infeasible, ValueError, OSError) as error:
        Console(stderr=True).print(str(error), markup=False, style="red", soft_wrap=True)
        raise typer.Exit(2) from error
    report = verify(instance, solution.plans)
    if not report.ok:
        Console(stderr=True).print("\n".join(report.faults[:10]), markup=False, style="red", soft_wrap=True)
        raise typer.Exit(1)
    _show(console, instance, solution, seed)
    if output is not None:
        options = {"sro": sro, "app": app_share, "qsr": qsr_levels, "seed": seed}
        updated = add_to_plan(plan, instance, solution, cluster=cluster, options=options)
        output.write_text(dump_plan(updated), encoding="utf-8")
        console.print(f"plan written to {output}", markup=False)
    addresses = Addresses.of_cluster(cluster)
    if openflow is not None:
        _write(openflow, rule_lines(openflow_rules(instance, solution.plans, addresses)))
    if srv6 is not None:
        _write(srv6, srv6_lines(instance, solution.plans, addresses))


def _write(path: Path, lines: Sequence[str]) -> None:
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _show(console: Console, instance: Instance, solution: Solution, seed: int) -> None:
    others: dict[str, Sequence[TaskPlan]] = {
        "RANDOM": plan_random(instance, seed=seed),
        "AggTree": plan_aggtree(instance, seed=seed),
    }
    table = Table("task", "ARO Gbit/s", *(f"{name} Gbit/s" for name in others))
    for place, plan in enumerate(solution.plans):
        rates = [plan.rate, *(plans[place].rate for plans in others.values())]
        table.add_row(f"{plan.job} -> {plan.ps}", *(f"{rate:.2f}" for rate in rates))
    console.print(table)
    state = "proven optimal" if solution.proven else f"within {100 * solution.gap:.2f} % of the proven bound"
    console.print(f"{state}, {solution.seconds:.2f} s, routes verified", markup=False)
