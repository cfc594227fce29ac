"""``mlt demo``: train a real model over the transport, with losses, and compare."""

from __future__ import annotations

import time
from dataclasses import replace
from enum import Enum
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mlt._shared.extras import how_to_install
from mlt._shared.processes import interruptible
from mlt.cli.ending import interrupted
from mlt.cli.output import Output
from mlt.cli.output_option import FOLDER
from mlt.cli.style import App, show_error, status_of
from mlt.cli.unit_option import LOSS, TIME, UnitOption
from mlt.demo.problem import BadSettingError, DemoError

if TYPE_CHECKING:
    from mlt.demo.settings import DemoSettings, Network

app = App()


class NetworkChoice(str, Enum):
    auto = "auto"
    testbed = "testbed"
    loopback = "loopback"


class DataChoice(str, Enum):
    auto = "auto"
    fashion_mnist = "fashion-mnist"
    mnist = "mnist"


@app.command()
def demo(
    *,
    network: Annotated[
        NetworkChoice,
        typer.Option(
            help="Hosts of a testbed, beside gloo, or processes on loopback; auto: a testbed if this machine can make "
            "one (as root)."
        ),
    ] = NetworkChoice.auto,
    steps: Annotated[
        int | None, typer.Option(help="Training steps per run.", show_default="240 on a testbed, 360 on loopback")
    ] = None,
    loss: Annotated[
        float,
        typer.Option(parser=UnitOption(LOSS), help="Packet loss of the lossy runs: a fraction, or percent (1%)."),
    ] = 0.01,
    loss_bound: Annotated[
        float,
        typer.Option(
            parser=UnitOption(LOSS), help="Loss bound: max fraction of a gradient tensor that may be missing."
        ),
    ] = 0.1,
    seed: Annotated[int, typer.Option(help="First seed of the weights, the image order and the packet loss.")] = 1,
    seeds: Annotated[
        int, typer.Option(help="Number of seeds; all runs are repeated with each, to show the noise.")
    ] = 1,
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", metavar="FOLDER", parser=FOLDER, help="Folder for report.json, report.png and logs."
        ),
    ] = Path("demo-report"),
    live: Annotated[bool, typer.Option(help="Redraw a live table (on a terminal only).")] = True,
    workers: Annotated[
        int | None, typer.Option(help="Number of worker processes.", show_default="4 on a testbed, 2 on loopback")
    ] = None,
    data: Annotated[DataChoice, typer.Option(help="Data set.")] = DataChoice.auto,
    timeout: Annotated[
        float,
        typer.Option(
            parser=UnitOption(TIME), help="Time without progress after which a run fails, with a unit, e.g. 30s."
        ),
    ] = 120.0,
) -> None:
    """Train a small residual network over the transport: without loss, fully reliable with loss, with a loss bound.

    On a testbed, each worker has a host of its own in a network that loses packets, and the same model trains over gloo
    in the same network first. Elsewhere, workers and one summation service process communicate over UDP sockets of this
    host and drop packets themselves. The results are a table, a plot and a JSON file.
    """
    console = Output()
    try:
        with interruptible():
            from mlt.demo.settings import STEPS, WORKERS, DemoSettings

            place: Network = "testbed" if network is NetworkChoice.auto else network.value
            settings = DemoSettings(
                network=place,
                steps=STEPS[place] if steps is None else steps,
                loss=loss,
                bound=loss_bound,
                seed=seed,
                seeds=seeds,
                workers=WORKERS[place] if workers is None else workers,
                data=data.value,
                output=output,
                live=live,
                stall_seconds=timeout,
            )
            _require(("torch", "matplotlib"))
            _check_interface()
            if place == "testbed" and (problems := _testbed_problems(settings)):
                if network is NetworkChoice.testbed:
                    raise DemoError("; ".join(problems))
                console.print_text(
                    f"no testbed on this machine ({'; '.join(problems)}). On loopback instead, where processes drop "
                    "packets themselves: gloo, whose TCP loses nothing there, is left out"
                )
                settings = replace(
                    settings,
                    network="loopback",
                    steps=STEPS["loopback"] if steps is None else steps,
                    workers=WORKERS["loopback"] if workers is None else workers,
                )
            _run(console, settings)
    except DemoError as error:
        show_error(error)
        raise SystemExit(status_of(error)) from None
    except KeyboardInterrupt as error:
        typer.echo("mlt demo: interrupted: every process was ended", err=True)
        raise SystemExit(interrupted(error)) from None


def _run(console: Output, settings: DemoSettings) -> None:
    from mlt.demo import data, plot, report, table
    from mlt.demo.display import make_display
    from mlt.demo.runner import execute
    from mlt.demo.settings import in_turns, run_specs

    began = time.monotonic()
    images = data.load(settings.data)
    try:
        settings.output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadSettingError(f"--output {settings.output} cannot be made: {error.strerror}") from None
    console.print_text(
        f"data: {images.name}, {len(images.train_labels):,} images to learn and {len(images.test_labels):,} to test; "
        f"{images.origin}; licence: {images.licence}"
    )
    runs = run_specs(settings)
    records = {}
    with make_display(console, runs, steps=settings.steps, live=settings.live) as display:
        for run in in_turns(runs):
            display.begin(run)
            logs = settings.output / "logs" / f"{run.name}-seed-{run.seed}"
            records[run] = execute(settings, run, logs=logs, observe=display.observe)
    result = report.build(settings, images, [records[run] for run in runs], seconds=time.monotonic() - began)
    console.print_table(table.comparison(result))
    if settings.seeds > 1:
        console.print_table(table.accuracy_by_seed(result))
    written = [report.write_json(result, settings.output), plot.write_png(result, settings.output)]
    console.print(f"{result.seconds:.0f} s in all; written: {', '.join(map(str, written))}", markup=False)


def _testbed_problems(settings: DemoSettings) -> list[str]:
    from mlt.demo.network import testbed_problems

    return testbed_problems(settings)


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
        are = "is" if len(missing) == 1 else "are"
        raise DemoError(f"{' and '.join(missing)} {are} not installed: {how_to_install('demo')}")
