"""Command line of the sweeps: ``python -m mlt.planners.routing.experiments SWEEP --out docs/results/aro``."""

from __future__ import annotations

from pathlib import Path

import click

from mlt.planners.cluster import dump_cluster
from mlt.planners.routing.convert import cluster_of
from mlt.planners.routing.experiments import many, reductions, sjst
from mlt.planners.routing.generate import MAPPINGS, Hardware, Workload, fat_tree, leaf_spine
from mlt.planners.routing.multiple import Effort

_OUT = click.option("--out", type=click.Path(path_type=Path), default=Path("docs/results/aro"), show_default=True)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Repeat the paper's experiments; every command writes JSON, CSV and PNG files into --out."""


@main.command("sjst")
@_OUT
@click.option("--seeds", default=1000, show_default=True)
@click.option("--other-seeds", default=200, show_default=True, help="For the other port mappings.")
def sjst_command(out: Path, seeds: int, other_seeds: int) -> None:
    """Figure 7a: one task of 200 workers, proven optima beside the baselines, in every reading."""
    sjst.run(out, seeds=seeds, other_seeds=other_seeds, progress=click.echo)


@main.command("curves")
@_OUT
@click.option("--seeds", default=30, show_default=True)
def curves_command(out: Path, seeds: int) -> None:
    """Figures 7b, 7c and 8: share of aggregators, workers, pipelines."""
    sjst.run_curves(out, seeds=seeds, progress=click.echo)


@main.command("many")
@_OUT
@click.option("--seeds", default=30, show_default=True)
@click.option("--seconds", default=20.0, show_default=True, help="Limit of each search.")
def many_command(out: Path, seeds: int, seconds: float) -> None:
    """Figures 9 and 10: several tasks and jobs of 100 workers."""
    many.run(out, seeds=seeds, effort=Effort(seconds=seconds), progress=click.echo)


@main.command("scale")
@_OUT
@click.option("--seeds", default=5, show_default=True)
@click.option("--seconds", default=60.0, show_default=True, help="Limit of each search.")
@click.option("--lambda", "scales", type=click.IntRange(1, 5), multiple=True, default=(5, 4, 3), show_default=True)
def scale_command(out: Path, seeds: int, seconds: float, scales: tuple[int, ...]) -> None:
    """Figure 11: up to 240 switches and five jobs, with and without SRO, APP and QSR."""
    many.run_scale(out, seeds=seeds, scales=scales, effort=Effort(seconds=seconds), progress=click.echo)


@main.command("reductions")
@_OUT
@click.option("--seeds", default=100, show_default=True)
def reductions_command(out: Path, seeds: int) -> None:
    """Figures 12 and 13: loss and time of SRO, APP and QSR."""
    reductions.run(out, seeds=seeds, progress=click.echo)


@main.command("solvers")
@_OUT
@click.option("--seeds", default=5, show_default=True)
@click.option("--seconds", default=30.0, show_default=True, help="Limit of each solver run.")
def solvers_command(out: Path, seeds: int, seconds: float) -> None:
    """The paper's model given whole to HiGHS and CP-SAT, beside the search of this package."""
    reductions.run_solvers(out, seeds=seeds, seconds=seconds, progress=click.echo)


@main.command("instance")
@click.option("--fat-tree", "arity", type=int, help="A fat-tree of this arity in place of the paper's leaf-spine.")
@click.option("--seed", default=0, show_default=True)
@click.option("--share", default=0.2, show_default=True, help="Programmable share of the switches.")
@click.option("--mapping", type=click.Choice(MAPPINGS), default="class", show_default=True)
@click.option("--ps-leaf-in-share/--ps-leaf-on-top", default=True, show_default=True)
@click.option("--jobs", default=1, show_default=True)
@click.option("--tasks", default=1, show_default=True)
@click.option("--workers", default=200, show_default=True)
def instance_command(
    arity: int | None,
    seed: int,
    share: float,
    mapping: str,
    ps_leaf_in_share: bool,
    jobs: int,
    tasks: int,
    workers: int,
) -> None:
    """Print a generated instance as a cluster file, every switch's port-to-pipeline map written out."""
    hardware = Hardware(share=share, mapping=mapping, ps_leaf_in_share=ps_leaf_in_share)  # type: ignore[arg-type]
    workload = Workload(jobs=jobs, tasks=tasks, workers=workers)
    if arity is None:
        instance = leaf_spine(seed=seed, hardware=hardware, workload=workload)
    else:
        instance = fat_tree(k=arity, seed=seed, hardware=hardware, workload=workload)
    where = "among" if ps_leaf_in_share else "on top of"
    click.echo(f"# seed {seed}; leaves of servers are {where} the {share:.0%} programmable switches; map: {mapping}")
    click.echo(dump_cluster(cluster_of(instance)), nl=False)


if __name__ == "__main__":
    main()
