"""``mlt launch``: run a program as all ranks of a job on this machine."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import subprocess
import sys
from typing import Annotated, Any, NoReturn

import click
import typer

from mlt._shared import processes as supervisor
from mlt._shared.first_failure import FailureLog
from mlt._shared.ports import free_port_pair
from mlt._shared.units import format_time
from mlt.cli import launch_elastic as elastic
from mlt.cli.ending import NOT_EXECUTABLE, interrupted
from mlt.cli.program import unrunnable
from mlt.cli.style import App, show_error, show_problem, status_of
from mlt.cli.unit_option import TIME, UnitOption
from mlt.errors import ConfigError, MltError
from mlt.job import bpslaunch
from mlt.job.epochs.settings import WAIT_SECONDS, is_elastic
from mlt.job.secret import own_secret
from mlt.options import serving
from mlt.options.limits import MAX_RANKS

HOST = "127.0.0.1"

app = App(context={"allow_interspersed_args": False})


@app.command()
def launch(
    ctx: typer.Context,
    command: Annotated[
        list[str] | None, typer.Argument(help="Program of the workers, with its arguments.", show_default=False)
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            "--workers",
            "-n",
            min=1,
            max=MAX_RANKS,
            help="Number of workers, with --byteps of this host.",
            show_default="2; with --byteps 1 per device",
        ),
    ] = None,
    services: Annotated[
        int, typer.Option("--services", "-s", min=0, max=MAX_RANKS - 1, help="Number of summation services.")
    ] = 0,
    grace: Annotated[
        float,
        typer.Option(
            parser=UnitOption(TIME),
            help="Time for the others to end after one failed, for services after all workers, and for stopped workers "
            "to continue after all others, with a unit, e.g. 30s.",
        ),
    ] = 5.0,
    max_dead_workers: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Number of workers that may fail while the services sum without them and the others continue.",
            show_default="MLT_MAX_DEAD_WORKERS, else 0",
        ),
    ] = None,
    max_dead_services: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Number of services that may fail while the other services take over.",
            show_default="MLT_MAX_DEAD_SERVICES, else 0",
        ),
    ] = None,
    min_workers: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=MAX_RANKS,
            help="Elastic job: number of workers that must be left; the others may end, fail or join.",
            show_default="not elastic",
        ),
    ] = None,
    max_workers: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=MAX_RANKS,
            help="Elastic job: max number of workers; further ones are rejected.",
            show_default="no limit, if --min-workers is given",
        ),
    ] = None,
    wait: Annotated[
        float,
        typer.Option(
            parser=UnitOption(TIME),
            help="Elastic job: time to wait for --min-workers, and for a member that does not come to the end of an "
            "epoch, with a unit, e.g. 30s.",
        ),
    ] = WAIT_SECONDS,
    byteps: Annotated[
        bool,
        typer.Option(
            "--byteps",
            help="Start this host's workers of a BytePS job, as bpslaunch does: by DMLC_ROLE, DMLC_NUM_WORKER, "
            "DMLC_WORKER_ID, DMLC_PS_ROOT_URI and DMLC_PS_ROOT_PORT.",
        ),
    ] = False,
) -> None:
    """Run COMMAND once per worker, and the summation services, until all have ended.

    The environment of each has RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT, MLT_SERVICES
    and MLT_JOB_SECRET; an existing secret is kept. Every output line begins with the rank. When a rank fails, the
    others are ended, and the exit status is that of the rank that failed first, also if another, which failed because
    of it, ended before it: the lines name all. Services that still wait after all workers have ended are ended too,
    with exit status 1: no worker joined the job. Once others have succeeded and all workers that are left are stopped
    (SIGSTOP), these are ended after --grace, and count as failed. With --max-dead-workers N the others continue after
    up to N workers have failed, and these do not count for the exit status; --max-dead-services is the same for
    services.

    With --min-workers or --max-workers the job is elastic (docs/elastic.md): each process has MLT_ELASTIC instead of a
    rank, workers and services may end, fail or join between two steps, and SIGUSR1 to this command starts another
    worker. The exit status is 0 if a worker succeeded. If MLT_ELASTIC is set, the processes join that job.

    With --byteps each worker also has BYTEPS_LOCAL_RANK and BYTEPS_LOCAL_SIZE; the host of rank 0 is DMLC_PS_ROOT_URI,
    and between hosts the secret must be set. With DMLC_ROLE scheduler or server, the command ends at once with status
    0, because mlt needs none. MLT_ELASTIC must not be set.
    """
    if byteps and services:
        raise typer.BadParameter("BytePS's workers sum among themselves; leave it out", param_hint="--services")
    if max_dead_workers is not None and not services:
        raise typer.BadParameter("only --services sum without a worker", param_hint="--max-dead-workers")
    if max_dead_services is not None and not services:
        raise typer.BadParameter("the job has no --services", param_hint="--max-dead-services")
    may_die, services_may_die = _may_die(max_dead_workers, max_dead_services) if services else (0, 0)
    forms_epochs = min_workers is not None or max_workers is not None
    joins_epochs = is_elastic()
    if (forms_epochs or joins_epochs) and (max_dead_workers is not None or max_dead_services is not None):
        raise typer.BadParameter(
            "in an elastic job the others continue after any failure that leaves --min-workers; leave it out",
            param_hint="--max-dead-workers" if max_dead_workers is not None else "--max-dead-services",
        )
    if byteps and forms_epochs:
        raise typer.BadParameter("an elastic job gives the ranks itself; leave it out", param_hint="--byteps")
    if byteps and joins_epochs:
        raise typer.BadParameter(
            "MLT_ELASTIC is set, and an elastic job gives the ranks itself: unset it, or leave this out",
            param_hint="--byteps",
        )
    if byteps:
        _end_if_without_workers()
    if not command:
        raise _MissingCommandError(ctx)
    if (problem := unrunnable(command[0])) is not None:
        status, text = problem
        show_problem(text, is_usage=False)
        raise typer.Exit(status)
    if forms_epochs or joins_epochs:
        if forms_epochs and joins_epochs:
            raise typer.BadParameter(
                "MLT_ELASTIC is set, and the coordinator there has the bounds: unset it, or leave this out",
                param_hint="--max-workers" if min_workers is None else "--min-workers",
            )
        _launch_elastic(command, 2 if workers is None else workers, services, (min_workers, max_workers), wait, grace)
    own = _workers_of_byteps(workers) if byteps else _ranks_here(2 if workers is None else workers, services)
    workers = len(own) - services
    first = int(own[0]["RANK"])
    names = [
        f"rank {first + rank}" if rank < workers else f"service {rank - workers} (rank {rank})"
        for rank in range(len(own))
    ]
    guard = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []

    def start(rank: int, **options: Any) -> subprocess.Popen[bytes]:
        inherited = {name: value for name, value in os.environ.items() if name != "MLT_RENDEZVOUS_PORT"}
        environment = {**inherited, **own[rank], **failures.environment}
        if services:
            environment["MLT_MAX_DEAD_WORKERS"] = str(may_die)
            environment["MLT_MAX_DEAD_SERVICES"] = str(services_may_die)
        service = [sys.executable, "-m", "mlt.cli.main", "serve", "--quiet"]
        words = command if rank < workers else service
        try:
            return subprocess.Popen([*guard, *words], env=environment, **options)
        except OSError as error:
            # Without the cause: its frames hold the job's secret.
            raise _CannotStartError(f"{names[rank]}: cannot start {words[0]!r}: {_why(error)}") from None

    told: list[str] = []

    def failed(ending: supervisor.Ending) -> None:
        told.append(ending.name)
        _say(f"{ending.name} {ending}; the others have {format_time(grace)} to end")

    def spared(ending: supervisor.Ending) -> None:
        told.append(ending.name)
        continues = "" if ending.was_stopped else "; the others continue without it"
        _say(f"{ending.name} {ending}{continues}, as the bounds of dead processes allow")

    try:
        with FailureLog() as failures, supervisor.interruptible():
            outcome = supervisor.run(
                names,
                start,
                grace=grace,
                write=lambda rank, line: supervisor.to_stdout(first + rank, line),
                services=services,
                max_failed=may_die,
                max_failed_services=services_may_die,
                failed=failed,
                spared=spared,
                lingering=_say,
                failures=failures,
                first_rank=first,
            )
    except _CannotStartError as error:
        show_problem(str(error), is_usage=False)
        raise typer.Exit(NOT_EXECUTABLE) from None
    except KeyboardInterrupt as error:
        _say("interrupted: every rank was ended")
        raise typer.Exit(interrupted(error)) from None
    # A service ends by itself when the workers leave the job; each joins by its environment variables.
    have_all_succeeded = sum(ending.code != 0 for ending in outcome.endings[:workers]) <= may_die
    for ending in outcome.endings:
        if ending.ended_by_us and have_all_succeeded:
            _say(
                f"{ending.name} was ended, because every worker has ended, and they had not all joined the job: the "
                "program must call mlt.Context() or init_process_group('mlt'), or needs no --services"
            )
        elif ending.ended_by_us:
            _say(f"{ending.name} was ended, because another one failed")
        elif (ending.code or ending.was_stopped) and ending.name not in told:
            _say(f"{ending.name} {ending}")
    if outcome.first is not None and told and outcome.first.name not in told:
        _say(f"{outcome.first.name} failed first")
    raise typer.Exit(outcome.code)


def _launch_elastic(
    command: list[str],
    workers: int,
    services: int,
    limits: tuple[int | None, int | None],
    wait: float,
    grace: float,
) -> NoReturn:
    """Run the processes of an elastic job, or of this host's part of one; ends this command."""
    guard = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
    names = [f"worker {one}" for one in range(workers)] + [f"service {one}" for one in range(services)]
    additions = elastic.Additions(workers, say=_say)
    joins = is_elastic()
    job: elastic.Job | None = None

    def start(index: int, **options: Any) -> subprocess.Popen[bytes]:
        inherited = {name: value for name, value in os.environ.items() if name not in elastic.NOT_INHERITED}
        environment = {**inherited, **_for_all(), **({} if job is None else job.environment)}
        is_service = workers <= index < workers + services
        words = [sys.executable, "-m", "mlt.cli.main", "serve", "--quiet"] if is_service else command
        try:
            return subprocess.Popen([*guard, *words], env=environment, **options)
        except OSError as error:
            # Without the cause: its frames hold the job's secret.
            raise _CannotStartError(f"cannot start {words[0]!r}: {_why(error)}") from None

    def spared(ending: supervisor.Ending) -> None:
        if job is not None:
            job.on_end(ending)
        _say(f"{ending.name} {ending}{'' if ending.was_stopped else elastic.consequence(ending, job)}")

    try:
        bounds = None if joins else elastic.bounds_of(workers, services, *limits, wait)
        with contextlib.ExitStack() as stack:
            job = None if bounds is None else stack.enter_context(elastic.Job(bounds, own_secret(os.environ)))
            stack.enter_context(supervisor.interruptible())
            stack.enter_context(additions.by_signal())
            if bounds is not None:
                _say(elastic.started_text(workers, bounds.min_workers))
            outcome = supervisor.run(
                names,
                start,
                grace=grace,
                services=services,
                max_failed=MAX_RANKS,
                max_failed_services=MAX_RANKS,
                spared=spared,
                lingering=_say,
                all_services_may_fail=True,
                joining=additions.take,
            )
    except MltError as error:
        show_error(error)
        raise typer.Exit(status_of(error)) from None
    except _CannotStartError as error:
        show_problem(str(error), is_usage=False)
        raise typer.Exit(NOT_EXECUTABLE) from None
    except KeyboardInterrupt as error:
        _say("interrupted: every process was ended")
        raise typer.Exit(interrupted(error)) from None
    for ending in outcome.endings:
        if ending.ended_by_us:
            _say(f"{ending.name} was ended, {'because every worker has ended' if outcome.first is None else 'too'}")
    if outcome.first is not None:
        _say(f"{outcome.first.name} failed first: it {outcome.first}")
    raise typer.Exit(outcome.code)


def _may_die(workers: int | None, services: int | None) -> tuple[int, int]:
    try:
        return serving.resolve(workers).max_dead_workers, serving.max_dead_services(services)
    except ConfigError as error:
        show_error(error)
        raise typer.Exit(2) from None


def _ranks_here(workers: int, services: int) -> list[dict[str, str]]:
    """The variables of each rank of a job on this host alone."""
    try:
        shared = {
            "WORLD_SIZE": str(workers),
            "LOCAL_WORLD_SIZE": str(workers),
            "MASTER_ADDR": HOST,
            "MASTER_PORT": str(free_port_pair(HOST)),
            "MLT_SERVICES": str(services),
            **_for_all(),
            **own_secret(os.environ),
        }
    except LookupError as error:
        show_error(error)
        raise typer.Exit(1) from None
    return [{**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(workers + services)]


def _end_if_without_workers() -> None:
    """End the command where BytePS would start its scheduler or a server."""
    try:
        role = bpslaunch.role(os.environ)
    except ConfigError as error:
        show_error(error)
        raise typer.Exit(2) from None
    if role in ("scheduler", "server"):
        _say(f"DMLC_ROLE is {role}: mlt needs none, the workers sum among themselves; nothing was started")
        raise typer.Exit(0)


def _workers_of_byteps(workers: int | None) -> list[dict[str, str]]:
    """The variables of each worker of this host."""
    try:
        found = bpslaunch.environments(os.environ, workers)
        if len(found) == int(found[0]["WORLD_SIZE"]):  # all workers are on this host
            here = {"MASTER_ADDR": HOST, "MASTER_PORT": str(free_port_pair(HOST)), **own_secret(os.environ)}
            found = [{**here, **one} for one in found]
    except (ConfigError, LookupError) as error:
        show_error(error)
        raise typer.Exit(2 if isinstance(error, ConfigError) else 1) from None
    return [{**_for_all(), **one} for one in found]


def _for_all() -> dict[str, str]:
    return {"PYTHONUNBUFFERED": os.environ.get("PYTHONUNBUFFERED", "1")}


class _MissingCommandError(click.UsageError):
    """A missing argument, reported like one that is always required; a host without workers needs none."""

    def __init__(self, ctx: Any) -> None:
        super().__init__("COMMAND is missing", ctx)
        self.param = next(one for one in ctx.command.params if one.name == "command")


class _CannotStartError(Exception):
    pass


def _why(error: OSError) -> str:
    hint = (
        "; a script needs #! and its interpreter as the first line, or name the interpreter before it"
        if error.errno == errno.ENOEXEC
        else ""
    )
    return f"{error.strerror or error}{hint}"


def _say(text: str) -> None:
    typer.echo(f"mlt launch: {text}", err=True)
