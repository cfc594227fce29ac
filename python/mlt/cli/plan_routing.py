"""``mlt plan route``: aggregator-aware routes for the jobs of a cluster file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from mlt.cli.style import FAILED, USAGE, App, is_stdout, text_beside, write_output
from mlt.cli.unit_option import TIME, UnitOption
from mlt.planners._shared.documents import InputError
from mlt.planners.aro.convert import add_to_plan, cluster_segment_ids, instance_of, ipv4_ends
from mlt.planners.aro.export import srv6_lines
from mlt.planners.aro.multiple import Effort, Solution, plan_routes
from mlt.planners.aro.verify import verify
from mlt.planners.cluster import Cluster, read_cluster
from mlt.planners.plan import Plan, dump_plan, new_plan, read_plan

app = App()


@app.command(name="route")
def route(
    cluster_file: Annotated[Path, typer.Argument(metavar="CLUSTER", help="The cluster file (YAML).")],
    jobs: Annotated[
        list[str] | None, typer.Option("--job", metavar="NAME", help="Route this job only; default: all with servers.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE|-",
            help="Plan file to extend; -: standard output.",
        ),
    ] = None,
    seconds: Annotated[
        float, typer.Option(parser=UnitOption(TIME, least=0.1), help="Time limit of the search.")
    ] = 60.0,
    seed: Annotated[int, typer.Option(help="Seed of the search order.")] = 0,
    srv6: Annotated[Path | None, typer.Option(help="File for SRv6 segment lists, one per line.")] = None,
) -> None:
    """ARO: choose each worker's route and aggregators."""
    with text_beside(out):
        _route(cluster_file, jobs, out, seconds, seed, srv6)


def _route(
    cluster_file: Path, jobs: list[str] | None, out: Path | None, seconds: float, seed: int, srv6: Path | None
) -> None:
    try:
        cluster = read_cluster(cluster_file)
        instance = instance_of(cluster, jobs=jobs or None)
        if srv6 is not None and (wrong := ipv4_ends(cluster, instance)):
            typer.echo(
                f"--srv6: {', '.join(wrong[:4])} have IPv4 addresses, and SRv6 segment lists need IPv6; "
                "give these hosts IPv6 addresses in the cluster file, or leave --srv6 out",
                err=True,
            )
            raise typer.Exit(2)
        plan = _plan_to_extend(cluster, out, seed)
        solution = plan_routes(instance, effort=Effort(seconds=seconds, seed=seed))
    except InputError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(USAGE) from None
    except (ValueError, OSError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(FAILED) from None
    report = verify(instance, solution.plans)
    if not report.ok:
        typer.echo("\n".join(["error: the routes failed their independent check", *report.faults[:10]]), err=True)
        raise typer.Exit(1)
    typer.echo(summary(solution))
    if out is not None:
        options = {"seed": seed}
        updated = add_to_plan(plan, instance, solution, cluster=cluster, options=options)
        try:
            write_output(out, dump_plan(updated))
        except OSError as error:
            typer.echo(f"{out}: cannot be written: {error.strerror}", err=True)
            raise typer.Exit(USAGE) from None
    if srv6 is not None:
        _write(srv6, srv6_lines(instance, solution.plans, cluster_segment_ids(cluster)))


def _plan_to_extend(cluster: Cluster, out: Path | None, seed: int) -> Plan:
    if out is None or is_stdout(out) or not out.exists():
        return new_plan(cluster, seed=seed)
    plan = read_plan(out)
    problems = plan.mismatches(cluster)
    if problems:
        raise InputError(problems, source=str(out))
    return plan


def _write(path: Path, lines: Sequence[str]) -> None:
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    typer.echo(f"written to {path}")


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
