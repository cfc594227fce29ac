"""Command line of the sweeps: ``python -m mlt.planners.routing.experiments SWEEP --out docs/results/aro``."""

from __future__ import annotations

from pathlib import Path

import click

from mlt.planners.routing.experiments import sjst

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


if __name__ == "__main__":
    main()
