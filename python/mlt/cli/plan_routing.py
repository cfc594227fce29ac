"""``mlt plan route``: aggregator-aware routes for the jobs of a cluster file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mlt.cli.output_option import TEXT_FILE
from mlt.cli.plan_file import plan_to_extend, refusals
from mlt.cli.style import App, is_stdout, write_output
from mlt.cli.unit_option import TIME, UnitOption
from mlt.planners._shared.documents import InputError, Problem
from mlt.planners.aro.convert import add_to_plan, cluster_segment_ids, instance_of, ipv4_ends
from mlt.planners.aro.export import srv6_lines
from mlt.planners.aro.multiple import Effort, Solution, plan_routes
from mlt.planners.aro.verify import verify
from mlt.planners.cluster import read_cluster
from mlt.planners.plan import dump_plan

app = App()


@app.command(name="route")
def route(
    cluster_file: Annotated[Path, typer.Argument(metavar="CLUSTER", help="The cluster file (YAML).")],
    jobs: Annotated[
        list[str] | None,
        typer.Option("--job", metavar="NAME", help="Route this job only.", show_default="all with servers"),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE|-",
            parser=TEXT_FILE,
            help="Plan file to extend; -: standard output.",
        ),
    ] = None,
    time_limit: Annotated[
        float, typer.Option(parser=UnitOption(TIME, minimum=0.1), help="Time limit of the search.")
    ] = 60.0,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the order in which routes are searched.")] = 0,
    srv6: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE|-", parser=TEXT_FILE, help="File for SRv6 segment lists, one per line; -: standard output."
        ),
    ] = None,
) -> None:
    """ARO: choose each worker's route and aggregators."""
    if is_stdout(out) and is_stdout(srv6):
        raise typer.BadParameter("standard output is --output's; name a file", param_hint="--srv6")
    with refusals(out=srv6 if is_stdout(srv6) else out):
        cluster = read_cluster(cluster_file)
        instance = instance_of(cluster, jobs=jobs or None)
        if srv6 is not None and (wrong := ipv4_ends(cluster, instance)):
            have = "has an IPv4 address," if len(wrong) == 1 else "have IPv4 addresses,"
            message = (
                f"{', '.join(wrong[:4])} {have} and SRv6 segment lists need IPv6; "
                "give these hosts IPv6 addresses in the cluster file, or leave --srv6 out"
            )
            raise InputError([Problem(where=("--srv6",), message=message)])
        plan = plan_to_extend(cluster, out, seed=seed)
        solution = plan_routes(instance, effort=Effort(seconds=time_limit, seed=seed))
        report = verify(instance, solution.plans)
        if not report.ok:
            raise ValueError("\n".join(["the routes failed their independent check", *report.faults[:10]]))
        typer.echo(summary(solution))
        if out is not None:
            updated = add_to_plan(plan, instance, solution, cluster=cluster, options={"seed": seed})
            write_output(out, dump_plan(updated))
        if srv6 is not None:
            lines = srv6_lines(instance, solution.plans, cluster_segment_ids(cluster))
            write_output(srv6, "\n".join(lines) + "\n")


def summary(solution: Solution) -> str:
    """Rates per task, and the gap to the bound, as text."""
    lines = ["Rate of every worker, Gbit/s"]
    lines += [f"  {plan.job} -> {plan.ps}: {plan.rate:.2f}" for plan in solution.plans]
    if solution.proven:
        lines.append(f"Proven optimal, found {solution.found_by} in {solution.seconds:.2f} s; routes verified")
    else:
        gap = f"{100 * solution.gap:.2f} %"
        lines.append(f"Within {gap} of the proven bound after {solution.seconds:.2f} s; routes verified")
    return "\n".join(lines)
