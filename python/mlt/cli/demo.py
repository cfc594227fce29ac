"""``mlt demo``: train a real model over the transport, with losses, and compare."""

from __future__ import annotations

import time
from enum import Enum
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from mlt._shared.processes import interruptible
from mlt.cli.style import FAILED, INTERRUPTED, USAGE, App, Output, show_error
from mlt.cli.unit_option import LOSS, TIME, UnitOption
from mlt.demo.problem import BadSettingError, DemoError

if TYPE_CHECKING:
    from mlt.demo.settings import DemoSettings

app = App()


class DataChoice(str, Enum):
    auto = "auto"
    fashion_mnist = "fashion-mnist"
    mnist = "mnist"


@app.command()
def demo(
    *,
    steps: Annotated[int, typer.Option(help="Training steps per run.")] = 360,
    loss: Annotated[
        float,
        typer.Option(
            parser=UnitOption(LOSS), help="Injected packet loss of the lossy runs: a fraction, or percent (1%)."
        ),
    ] = 0.01,
    bound: Annotated[
        float,
        typer.Option(
            parser=UnitOption(LOSS), help="Loss bound: max fraction of a gradient tensor that may be missing."
        ),
    ] = 0.1,
    seed: Annotated[int, typer.Option(help="First seed of the weights, the image order and the packet loss.")] = 1,
    seeds: Annotated[
        int, typer.Option(help="Number of seeds; all three runs are repeated with each, to show the noise.")
    ] = 1,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FOLDER", help="Folder for report.json, report.png and logs.")
    ] = Path("demo-report"),
    live: Annotated[bool, typer.Option(help="Redraw a live table (on a terminal only).")] = True,
    workers: Annotated[int, typer.Option(help="Number of worker processes.")] = 2,
    data: Annotated[DataChoice, typer.Option(help="Data set.")] = DataChoice.auto,
    timeout: Annotated[
        float, typer.Option(parser=UnitOption(TIME), help="Time without progress after which a run fails, in seconds.")
    ] = 120.0,
) -> None:
    """Train a small residual network three times over the transport: without loss, with a loss bound, fully reliable.

    Worker processes and one summation service process communicate over real UDP sockets of this host, with injected
    packet loss. The results are a table, a plot and a JSON file.
    """
    console = Output()
    try:
        with interruptible():
            from mlt.demo.settings import DemoSettings

            settings = DemoSettings(
                steps=steps,
                loss=loss,
                bound=bound,
                seed=seed,
                seeds=seeds,
                workers=workers,
                data=data.value,
                output=output,
                live=live,
                stall_seconds=timeout,
            )
            _require(("torch", "matplotlib"))
            _check_interface()
            _run(console, settings)
    except DemoError as error:
        show_error(error)
        raise SystemExit(USAGE if isinstance(error, BadSettingError) else FAILED) from None
    except KeyboardInterrupt:
        Console(stderr=True).print("interrupted: all processes of the demo were ended", markup=False)
        raise SystemExit(INTERRUPTED) from None


def _run(console: Output, settings: DemoSettings) -> None:
    from mlt.demo import data, plot, report, table
    from mlt.demo.display import make_display
    from mlt.demo.runner import execute
    from mlt.demo.settings import run_specs

    began = time.monotonic()
    images = data.load(settings.data)
    try:
        settings.output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadSettingError(f"--output {settings.output} cannot be made: {error.strerror}") from None
    console.print(
        f"data: {images.name}, {len(images.train_labels):,} images to learn and {len(images.test_labels):,} to test; "
        f"{images.origin}; licence: {images.licence}",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
    runs = run_specs(settings)
    records = []
    with make_display(console, runs, steps=settings.steps, live=settings.live) as display:
        for run in runs:
            display.begin(run)
            logs = settings.output / "logs" / f"{run.name}-seed-{run.seed}"
            records.append(execute(settings, run, logs=logs, observe=display.observe))
    result = report.build(settings, images, records, seconds=time.monotonic() - began)
    console.print_table(table.comparison(result))
    if settings.seeds > 1:
        console.print_table(table.accuracy_by_seed(result))
    written = [report.write_json(result, settings.output), plot.write_png(result, settings.output)]
    console.print(f"{result.seconds:.0f} s in all; written: {', '.join(map(str, written))}", markup=False)


def _check_interface() -> None:
    """Checked here once, rather than in every child's log."""
    from mlt.errors import ConfigError
    from mlt.job.address import local_host
    from mlt.job.configuration import JobConfig

    try:
        local_host(JobConfig.resolve(rank=0, world_size=1, services=0, master_addr="127.0.0.1", rendezvous_port=1))
    except ConfigError as error:
        raise BadSettingError(str(error).removeprefix("rank 0: ")) from None


def _require(modules: tuple[str, ...]) -> None:
    missing = [module for module in modules if find_spec(module) is None]
    if missing:
        raise DemoError(f"{' and '.join(missing)} not installed: pip install 'mlt[demo]' (torch first, see the README)")
