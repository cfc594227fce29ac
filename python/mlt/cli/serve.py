"""``mlt serve``: run a summation service until every worker has left."""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import Annotated, Any

import typer
from rich.console import Console

from mlt._shared.counts import count_of
from mlt.cli.style import App, show_error, show_problem, status_of
from mlt.cli.unit_option import TIME, UnitOption
from mlt.job.epochs.settings import is_elastic

HINT_SECONDS = 5.0  # without a worker
_LOOK_SECONDS = 1.0

app = App()


@app.command()
def serve(
    ctx: typer.Context,
    world_size: Annotated[
        int | None, typer.Option(envvar="WORLD_SIZE", help="Number of workers.", show_default=False)
    ] = None,
    services: Annotated[
        int,
        typer.Option(
            envvar="MLT_SERVICES",
            help="Number of summation services in the job; workers need the same, and have 0 by default.",
        ),
    ] = 1,
    index: Annotated[int, typer.Option(help="Index of this service, from 0; its rank is WORLD_SIZE + index.")] = 0,
    rank: Annotated[
        int | None, typer.Option(envvar="RANK", help="Rank of this service, instead of --index.", show_default=False)
    ] = None,
    master_addr: Annotated[
        str | None,
        typer.Option(envvar="MASTER_ADDR", metavar="ADDRESS", help="Address of rank 0's host.", show_default=False),
    ] = None,
    rendezvous_port: Annotated[
        int | None,
        typer.Option(
            envvar="MLT_RENDEZVOUS_PORT",
            help="Rendezvous port of rank 0.",
            show_default="MASTER_PORT + 1000",
        ),
    ] = None,
    job: Annotated[str, typer.Option(envvar="MLT_JOB", metavar="NAME", help="Job name.")] = "default",
    host: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Address to bind.", show_default="MLT_HOST, else the interface's"),
    ] = None,
    interface: Annotated[
        str | None,
        typer.Option(
            metavar="INTERFACE",
            help="Interface to use: names, =names, networks, ^exclusions.",
            show_default="MLT_INTERFACE, else the one towards rank 0",
        ),
    ] = None,
    faults: Annotated[
        str, typer.Option(metavar="FAULTS", help="Network faults to inject, for example drop=0.01,seed=7.")
    ] = "",
    connect_timeout: Annotated[
        float,
        typer.Option(
            envvar="MLT_CONNECT_TIMEOUT",
            parser=UnitOption(TIME),
            help="Time limit for all ranks to connect, with a unit, e.g. 30s.",
        ),
    ] = 60.0,
    max_dead_workers: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Number of workers that may die or leave while the sums continue without them.",
            show_default="MLT_MAX_DEAD_WORKERS, else 0",
        ),
    ] = None,
    max_wait: Annotated[
        float | None,
        typer.Option(
            parser=UnitOption(TIME),
            help="Time from the first complete push of a round to its end without the missing ones, with a unit, e.g. "
            "500ms.",
            show_default="MLT_MAX_WAIT, else no limit",
        ),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.")] = False,
) -> None:
    """Run a summation service: sum the workers' pushes, average over the contributions that arrived, serve the pulls.

    Ends when every worker has left or failed; exits with 1 if more failed than --max-dead-workers. With MLT_ELASTIC it
    joins that job instead, serves one epoch after the other, and ends when every worker has left the job; RANK,
    WORLD_SIZE, MLT_SERVICES and MASTER_ADDR are then not read, and their options are rejected.
    """
    # Here, so that the help needs no native library.
    from mlt.context import Context
    from mlt.errors import ConfigError, MltError
    from mlt.options import serving
    from mlt.options.faults import Faults
    from mlt.push_pull import SummationService

    output = Console(stderr=True, quiet=quiet, highlight=False)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    # The index that the command line gives goes before the rank of the environment, such as torchrun's.
    if _is_given(ctx, "index") and not _is_given(ctx, "rank"):
        rank = None
    if is_elastic():
        _reject_places(ctx)
        where = {"host": host, "interface": interface, "faults": faults}
        _serve_epochs(output, job, connect_timeout, (max_dead_workers, max_wait), where)
        return
    # Workers expect no service by default, and would start without this one.
    hint = threading.Timer(
        HINT_SECONDS,
        lambda: output.print(
            "mlt serve: waits for workers; --services is 1 by default here, 0 there: start them with MLT_SERVICES=1",
            soft_wrap=True,
        ),
    )
    hint.daemon = True
    try:
        options = serving.resolve(max_dead_workers, max_wait)
        if rank is None and world_size is not None and not 0 <= index < services:
            raise ConfigError(f"--index {index}: the job has {_indices(services)}")
        if rank is not None and world_size is not None and 0 <= rank < world_size:
            raise ConfigError(
                f"rank {rank} (RANK) is a worker's: services have the ranks from {world_size} (WORLD_SIZE) on; set "
                f"RANK={world_size + index}, or unset it and use --index"
            )
        if world_size is not None and _is_default(ctx, "services"):
            hint.start()
        with Context(
            rank=rank if rank is not None else _rank_of(index, world_size),
            world_size=world_size,
            services=services,
            job=job,
            master_addr=master_addr,
            rendezvous_port=rendezvous_port,
            host=host,
            interface=interface,
            faults=Faults.parse(faults),
            connect_timeout=connect_timeout,
        ) as context:
            hint.cancel()
            service = SummationService(context, max_dead_workers=options.max_dead_workers, max_wait=max_wait)
            output.print(
                f"mlt serve: rank {context.rank} of job {job!r} serves {count_of(context.world_size, 'worker')} "
                f"(process {os.getpid()})"
            )
            service.run()
            failures = [text for worker in range(context.world_size) if (text := context.peer_failure(worker))]
            output.print("mlt serve: every worker is gone")
    except MltError as error:
        show_error(error)
        raise typer.Exit(status_of(error)) from None
    finally:
        hint.cancel()
    are_too_many = len(failures) > options.max_dead_workers
    for failure in failures:
        if are_too_many:
            show_problem(failure, is_usage=False)
        else:
            output.print(f"mlt serve: the sums continued without a worker: {failure}", soft_wrap=True)
    if are_too_many:
        raise typer.Exit(1)


def _serve_epochs(
    output: Console,
    job: str,
    connect_timeout: float,
    limits: tuple[int | None, float | None],
    where: dict[str, Any],
) -> None:
    """Serve the epochs of an elastic job, until every worker has left it."""
    from mlt.elastic import Membership
    from mlt.errors import MltError, PeerFailedError
    from mlt.options.faults import Faults
    from mlt.push_pull import SummationService

    max_dead_workers, max_wait = limits
    try:
        options = {**where, "faults": Faults.parse(where["faults"]), "connect_timeout": connect_timeout}
        with Membership(kind="service", job=job, connect_timeout=connect_timeout) as membership:
            while (context := membership.next_epoch(**options)) is not None:
                service = SummationService(context, max_dead_workers=max_dead_workers, max_wait=max_wait)
                output.print(
                    f"mlt serve: epoch {membership.epoch} of job {job!r}: rank {context.rank} serves "
                    f"{count_of(context.world_size, 'worker')} (process {os.getpid()})"
                )
                try:
                    # A worker that hangs counts as dead after a time, and is connected all the same.
                    while not service.run(_LOOK_SECONDS) and not membership.is_epoch_over:
                        pass
                except PeerFailedError as error:  # the others have begun to go on without it; it joins again
                    output.print(f"mlt serve: {error}", soft_wrap=True)
    except MltError as error:
        show_error(error)
        raise typer.Exit(status_of(error)) from None
    output.print("mlt serve: every worker has left")


def _reject_places(ctx: typer.Context) -> None:
    """Raise BadParameter if the command line says where the service is in a job, which an epoch says instead."""
    for name in ("world_size", "services", "index", "rank", "master_addr", "rendezvous_port"):
        if _is_given(ctx, name):
            raise typer.BadParameter(
                "MLT_ELASTIC is set, and its coordinator gives ranks and addresses: unset it, or leave this out",
                param_hint=f"--{name.replace('_', '-')}",
            )


def _indices(services: int) -> str:
    if services < 1:
        return "no services (--services, MLT_SERVICES)"
    return "1 service, of index 0" if services == 1 else f"{services} services, of indices 0 to {services - 1}"


def _is_given(ctx: typer.Context, name: str) -> bool:
    return _source(ctx, name) == "COMMANDLINE"


def _is_default(ctx: typer.Context, name: str) -> bool:
    return _source(ctx, name) == "DEFAULT"


def _source(ctx: typer.Context, name: str) -> str:
    return getattr(ctx.get_parameter_source(name), "name", "")


def _rank_of(index: int, world_size: int | None) -> int:
    """Without a world size the configuration is rejected for that reason, whatever the rank."""
    return (world_size or 0) + index
