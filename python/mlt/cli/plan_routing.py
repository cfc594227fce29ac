"""``mlt plan route``: aggregator-aware routes for the jobs of a cluster file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from mlt.planners._shared.documents import InputError
from mlt.planners.aro.accelerate import Accelerations
from mlt.planners.aro.baselines import plan_aggtree, plan_random
from mlt.planners.aro.convert import add_to_plan, instance_of
from mlt.planners.aro.export import Addresses, openflow_rules, rule_lines, srv6_lines
from mlt.planners.aro.instance import Instance
from mlt.planners.aro.multiple import Effort, Solution
from mlt.planners.aro.solve import plan_routes
from mlt.planners.aro.verify import verify
from mlt.planners.cluster import Cluster, read_cluster
from mlt.planners.plan import Plan, dump_plan, new_plan, read_plan

app = typer.Typer(add_completion=False, context_settings={"help_option_names": ["-h", "--help"]})


@app.command(name="route")
def route(
    cluster_file: Annotated[Path, typer.Argument(metavar="CLUSTER", help="The cluster file (YAML).")],
    jobs: Annotated[
        list[str] | None, typer.Option("--job", metavar="NAME", help="Route this job only; default: all with servers.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write the plan here, keeping other sections.")
    ] = None,
    sro: Annotated[bool, typer.Option("--sro", help="Staged routing optimisation.")] = False,
    app_share: Annotated[
        float | None, typer.Option("--app", metavar="ALPHA", help="Keep this share of alternative aggregators.")
    ] = None,
    qsr_levels: Annotated[
        int | None, typer.Option("--qsr", metavar="N", help="Quantise rates to N levels of the fastest link.")
    ] = None,
    seconds: Annotated[float, typer.Option(min=0.1, help="Limit of the search.")] = 60.0,
    seed: Annotated[int, typer.Option(help="Of the search order and of the baselines.")] = 0,
    openflow: Annotated[Path | None, typer.Option(help="Write OpenFlow rules here, one per line.")] = None,
    srv6: Annotated[Path | None, typer.Option(help="Write SRv6 segment lists here, one per line.")] = None,
) -> None:
    """ARO: which route every worker's gradients take, and through which aggregators."""
    try:
        cluster = read_cluster(cluster_file)
        instance = instance_of(cluster, jobs=jobs or None)
        plan = _plan_to_extend(cluster, out, seed)
        accelerations = Accelerations(sro=sro, app_share=app_share, qsr_levels=qsr_levels)
        solution = plan_routes(instance, accelerations=accelerations, effort=Effort(seconds=seconds, seed=seed))
    except InputError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from None
    except (ValueError, OSError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(3) from None
    report = verify(instance, solution.plans)
    if not report.ok:
        typer.echo("\n".join(["error: the routes failed their independent check", *report.faults[:10]]), err=True)
        raise typer.Exit(1)
    typer.echo(summary(instance, solution, seed=seed))
    if out is not None:
        options = {"sro": sro, "app": app_share, "qsr": qsr_levels, "seed": seed}
        updated = add_to_plan(plan, instance, solution, cluster=cluster, options=options)
        try:
            out.write_text(dump_plan(updated), encoding="utf-8")
        except OSError as error:
            typer.echo(f"{out}: cannot be written: {error.strerror}", err=True)
            raise typer.Exit(2) from None
        typer.echo(f"written to {out}")
    addresses = Addresses.of_cluster(cluster)
    if openflow is not None:
        _write(openflow, rule_lines(openflow_rules(instance, solution.plans, addresses)))
    if srv6 is not None:
        _write(srv6, srv6_lines(instance, solution.plans, addresses))


def _plan_to_extend(cluster: Cluster, out: Path | None, seed: int) -> Plan:
    if out is None or not out.exists():
        return new_plan(cluster, seed=seed)
    plan = read_plan(out)
    problems = plan.mismatches(cluster)
    if problems:
        raise InputError(problems, source=str(out))
    return plan


def _write(path: Path, lines: Sequence[str]) -> None:
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    typer.echo(f"written to {path}")


def summary(instance: Instance, solution: Solution, *, seed: int) -> str:
    """Rates per task beside those of random and of AggTree routes, and how far from the bound, in words."""
    random, tree = plan_random(instance, seed=seed), plan_aggtree(instance, seed=seed)
    lines = ["Rate of every worker, Gbit/s (beside: one random aggregating spine; leaves spread at random)"]
    for ours, one, spread in zip(solution.plans, random, tree, strict=True):
        lines.append(f"  {ours.job} -> {ours.ps}: {ours.rate:.2f}  ({one.rate:.2f}; {spread.rate:.2f})")
    if solution.proven:
        lines.append(f"Proven optimal, found {solution.found_by} in {solution.seconds:.2f} s; routes verified")
    else:
        gap = f"{100 * solution.gap:.2f} %"
        lines.append(f"Within {gap} of the proven bound after {solution.seconds:.2f} s; routes verified")
    return "\n".join(lines)
