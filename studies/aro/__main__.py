"""Command line of the sweeps: ``python -m studies.aro SWEEP --out docs/results/aro``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mlt.cli.unit_option import TIME, UnitOption
from mlt.planners.aro.multiple import Effort
from mlt.planners.cluster import dump_cluster
from studies.aro import many, reductions, sjst
from studies.aro.cluster_file import cluster_of
from studies.aro.generate import MAPPINGS, Hardware, Workload, fat_tree, leaf_spine

main = typer.Typer(
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Repeat the paper's experiments; every command writes JSON, CSV and PNG files into --out.",
)
Out = Annotated[Path, typer.Option(help="Folder for the results.")]
Limit = Annotated[float, typer.Option(parser=UnitOption(TIME, above=0), help="Time limit of each search, in seconds.")]
Seeds = Annotated[int, typer.Option(help="Number of random instances.")]
RESULTS = Path("docs/results/aro")


@main.command("sjst")
def sjst_command(
    out: Out = RESULTS,
    seeds: Seeds = 1000,
    other_seeds: Annotated[int, typer.Option(help="Number of random instances of the other port mappings.")] = 200,
) -> None:
    """Figure 7a: one task of 200 workers, proven optima and baselines, in every interpretation of the paper."""
    sjst.run(out, seeds=seeds, other_seeds=other_seeds, progress=typer.echo)


@main.command("grid")
def grid_command(out: Out = RESULTS, seeds: Seeds = 300) -> None:
    """GRID's mean rate in each interpretation of the paper's description."""
    sjst.run_grid(out, seeds=seeds, progress=typer.echo)


@main.command("curves")
def curves_command(out: Out = RESULTS, seeds: Seeds = 10) -> None:
    """Figures 7b, 7c and 8: share of aggregators, workers, pipelines."""
    sjst.run_curves(out, seeds=seeds, progress=typer.echo)


@main.command("many")
def many_command(
    out: Out = RESULTS,
    seeds: Seeds = 10,
    seconds: Limit = 20.0,
    only: Annotated[
        list[str] | None, typer.Option(metavar="3J2T", help="Run this shape only, without figures; repeatable.")
    ] = None,
) -> None:
    """Figures 9 and 10: several tasks and jobs of 100 workers."""
    many.run(out, seeds=seeds, effort=Effort(seconds=seconds), progress=typer.echo, only=only or ())


@main.command("scale")
def scale_command(
    out: Out = RESULTS,
    seeds: Seeds = 3,
    seconds: Limit = 20.0,
    scales: Annotated[
        list[int] | None,
        typer.Option("--lambda", min=1, max=5, help="Size of the network, in units of 48 switches; repeatable."),
    ] = None,
) -> None:
    """Figure 11: 240 switches and five jobs by default, with and without SRO, APP and QSR."""
    many.run_scale(out, seeds=seeds, scales=scales or [5], effort=Effort(seconds=seconds), progress=typer.echo)


@main.command("reductions")
def reductions_command(out: Out = RESULTS, seeds: Seeds = 40) -> None:
    """Figures 12 and 13: loss and time of SRO, APP and QSR."""
    reductions.run(out, seeds=seeds, progress=typer.echo)


@main.command("solvers")
def solvers_command(out: Out = RESULTS, seeds: Seeds = 10, seconds: Limit = 30.0) -> None:
    """The paper's complete model in HiGHS and CP-SAT, compared with the search of this package."""
    reductions.run_solvers(out, seeds=seeds, seconds=seconds, progress=typer.echo)


@main.command("instance")
def instance_command(
    fat_tree_arity: Annotated[
        int | None, typer.Option("--fat-tree", help="Arity k of a fat-tree.", show_default="leaf-spine")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the instance.")] = 0,
    share: Annotated[float, typer.Option(help="Programmable fraction of the switches.")] = 0.2,
    mapping: Annotated[str, typer.Option(help=f"Mapping of ports to pipelines: {', '.join(MAPPINGS)}.")] = "class",
    ps_leaf_in_share: Annotated[
        bool,
        typer.Option(
            "--ps-leaf-in-share/--ps-leaf-on-top",
            help="Count the programmable leaf of the parameter server in --share, or add it.",
        ),
    ] = True,
    jobs: Annotated[int, typer.Option(help="Number of jobs.")] = 1,
    tasks: Annotated[int, typer.Option(help="Number of tasks per job.")] = 1,
    workers: Annotated[int, typer.Option(help="Number of workers per job.")] = 200,
) -> None:
    """Print a generated instance as a cluster file, with every switch's port-to-pipeline map."""
    hardware = Hardware(share=share, mapping=mapping, ps_leaf_in_share=ps_leaf_in_share)  # type: ignore[arg-type]
    workload = Workload(jobs=jobs, tasks=tasks, workers=workers)
    if fat_tree_arity is None:
        instance = leaf_spine(seed=seed, hardware=hardware, workload=workload)
    else:
        instance = fat_tree(k=fat_tree_arity, seed=seed, hardware=hardware, workload=workload)
    where = "among" if ps_leaf_in_share else "on top of"
    typer.echo(f"# seed {seed}; leaves of servers are {where} the {share:.0%} programmable switches; map: {mapping}")
    typer.echo(dump_cluster(cluster_of(instance)), nl=False)


if __name__ == "__main__":
    main()
