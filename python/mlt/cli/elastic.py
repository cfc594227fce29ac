"""``mlt elastic``: run the membership coordinator of an elastic job on several hosts."""

from __future__ import annotations

import logging
import os
import signal
from typing import Annotated

import typer

from mlt.cli.ending import interrupted
from mlt.cli.style import App, show_error, status_of
from mlt.cli.unit_option import TIME, UnitOption
from mlt.job.epochs.settings import DEFAULT_PORT, WAIT_SECONDS
from mlt.options.limits import MAX_RANKS

app = App()


@app.command()
def elastic(
    listen: Annotated[
        str,
        typer.Option(metavar="HOST:PORT", help="Address of this host to listen at, which all members can reach."),
    ] = f"127.0.0.1:{DEFAULT_PORT}",
    min_workers: Annotated[
        int, typer.Option(min=1, max=MAX_RANKS, help="Number of workers that every epoch needs.")
    ] = 1,
    max_workers: Annotated[
        int, typer.Option(min=1, max=MAX_RANKS, help="Max number of workers; further ones are rejected.")
    ] = MAX_RANKS,
    min_services: Annotated[
        int, typer.Option(min=0, max=MAX_RANKS - 1, help="Number of summation services that every epoch needs.")
    ] = 0,
    wait: Annotated[
        float,
        typer.Option(
            parser=UnitOption(TIME),
            help="Time to wait for these numbers, and for a member that does not come to the end of an epoch, with a "
            "unit, e.g. 30s. Longer than a step.",
        ),
    ] = WAIT_SECONDS,
    job: Annotated[str, typer.Option(envvar="MLT_JOB", metavar="NAME", help="Job name.")] = "default",
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print warnings and errors only.")] = False,
) -> None:
    """Run the membership coordinator of an elastic job, until Ctrl-C or SIGTERM.

    Workers and services of the job have MLT_ELASTIC=HOST:PORT and the job's secret, which this command needs as well,
    instead of ranks. They join when they start, and leave when they end (docs/elastic.md). If this command ends, the
    job continues until members change; start it again with the same options, and it takes the members back. On one
    host, `mlt launch --min-workers` runs the coordinator itself.
    """
    # Here, so that the help loads less.
    from mlt._shared.processes import interruptible
    from mlt.errors import MltError
    from mlt.job import secret as secret_module
    from mlt.job.epochs.coordinator import Coordinator
    from mlt.job.epochs.settings import Bounds, Place

    logging.basicConfig(format="mlt elastic: %(message)s", level=logging.WARNING if quiet else logging.INFO)
    try:
        bounds = Bounds(min_workers=min_workers, max_workers=max_workers, min_services=min_services, wait_seconds=wait)
        coordinator = Coordinator(
            Place.parse(listen, source="--listen"),
            bounds,
            job=job,
            secret=secret_module.resolve(None),
            insecure=secret_module.is_insecure(),
        )
        with coordinator, interruptible():
            logging.getLogger("mlt").info("listens at %s (process %d)", coordinator.place, os.getpid())
            coordinator.run()
    except MltError as error:
        show_error(error)
        raise typer.Exit(status_of(error)) from None
    except KeyboardInterrupt as error:
        status = interrupted(error)
        raise typer.Exit(0 if status == 128 + signal.SIGTERM else status) from None
