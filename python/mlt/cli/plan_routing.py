"""``mlt plan route``: aggregator-aware routes for the jobs of a cluster file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from mlt.planners.cluster import Cluster, read_cluster
from mlt.planners.documents import InputError
from mlt.planners.plan import Plan, dump_plan, new_plan, read_plan
from mlt.planners.routing.accelerate import Accelerations
from mlt.planners.routing.baselines import plan_aggtree, plan_random
from mlt.planners.routing.convert import add_to_plan, instance_of
from mlt.planners.routing.export import Addresses, openflow_rules, rule_lines, srv6_lines
from mlt.planners.routing.instance import Instance
from mlt.planners.routing.multiple import Effort, Solution
from mlt.planners.routing.solve import plan_routes
from mlt.planners.routing.verify import verify

_FILE = click.Path(path_type=Path)


@click.command(name="route", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("cluster_file", metavar="CLUSTER", type=_FILE)
@click.option("--job", "jobs", metavar="NAME", multiple=True, help="Route this job only; default: all with servers.")
@click.option("-o", "--out", type=_FILE, help="Write the plan here, keeping other sections.")
@click.option("--sro", is_flag=True, help="Staged routing optimisation.")
@click.option("--app", "app_share", type=float, metavar="ALPHA", help="Keep this share of alternative aggregators.")
@click.option("--qsr", "qsr_levels", type=int, metavar="N", help="Quantise rates to N levels of the fastest link.")
@click.option("--seconds", type=click.FloatRange(min=0.1), default=60.0, show_default=True, help="Limit of the search.")
@click.option("--seed", default=0, show_default=True, help="Of the search order and of the baselines.")
@click.option("--openflow", type=_FILE, help="Write OpenFlow rules here, one per line.")
@click.option("--srv6", type=_FILE, help="Write SRv6 segment lists here, one per line.")
def app(
    cluster_file: Path,
    jobs: tuple[str, ...],
    out: Path | None,
    sro: bool,
    app_share: float | None,
    qsr_levels: int | None,
    seconds: float,
    seed: int,
    openflow: Path | None,
    srv6: Path | None,
) -> None:
    """ARO: which route every worker's gradients take, and through which aggregators."""
    try:
        cluster = read_cluster(cluster_file)
        instance = instance_of(cluster, jobs=jobs or None)
        plan = _plan_to_extend(cluster, out, seed)
        accelerations = Accelerations(sro=sro, app_share=app_share, qsr_levels=qsr_levels)
        solution = plan_routes(instance, accelerations=accelerations, effort=Effort(seconds=seconds, seed=seed))
    except InputError as error:
        click.echo(str(error), err=True)
        raise SystemExit(2) from None
    except (ValueError, OSError) as error:
        click.echo(f"error: {error}", err=True)
        raise SystemExit(3) from None
    report = verify(instance, solution.plans)
    if not report.ok:
        click.echo("\n".join(["error: the routes failed their independent check", *report.faults[:10]]), err=True)
        raise SystemExit(1)
    click.echo(summary(instance, solution, seed=seed))
    if out is not None:
        options = {"sro": sro, "app": app_share, "qsr": qsr_levels, "seed": seed}
        updated = add_to_plan(plan, instance, solution, cluster=cluster, options=options)
        out.write_text(dump_plan(updated), encoding="utf-8")
        click.echo(f"written to {out}")
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
    click.echo(f"written to {path}")


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
