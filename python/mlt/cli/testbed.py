"""``mlt testbed``: run a job over a bad network, on one host."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from json import dumps
from pathlib import Path
from typing import Any, NoReturn

import click

from mlt._shared.output_files import WriteFailedError
from mlt._shared.units import format_time
from mlt.cli.click_style import Group
from mlt.cli.ending import interrupted
from mlt.cli.layout import print_lines
from mlt.cli.output import Output
from mlt.cli.output_option import TEXT_FILE
from mlt.cli.program import unrunnable
from mlt.cli.style import is_stdout, show_error, show_problem, status_of, write_json
from mlt.cli.unit_option import LOSS, RATE, SIZE, TIME, UnitOption
from mlt.testbed import bed as beds
from mlt.testbed import cleanup, report, requirements, runner, state, topology
from mlt.testbed.bed import Testbed
from mlt.testbed.errors import BadTopologyError, MissingError, TestbedError
from mlt.testbed.topology import Topology

DEFAULT_NAME = "bed"
# The limits of a topology's fields.
_RATE = UnitOption(RATE, minimum=8_000, maximum=100e9, whole=True)
_SIZE = UnitOption(SIZE, minimum=2_000, maximum=2**30, whole=True)
_LOSS = UnitOption(LOSS, maximum=1)
_DELAY = UnitOption(TIME, maximum=10)


@click.group(cls=Group)
def app() -> None:
    """Emulated hosts on a software switch, each in its own network namespace, with real queues and injected loss.

    \b
    mlt testbed run --hosts 4 --rate 200mbit --loss 1% -- mlt perf
    mlt testbed up --hosts 2;  mlt testbed exec host0 -- ping 10.77.0.2
    mlt testbed status --watch;  mlt testbed set host1 --loss 5%;  mlt testbed down

    Tutorial: docs/testbed.md.
    """


def _fail(error: Exception) -> NoReturn:
    if isinstance(error, MissingError):
        for problem in error.problems:
            click.echo(f"error: {problem}", err=True)
    else:
        show_error(error)
    raise SystemExit(status_of(error)) from error


@contextlib.contextmanager
def _errors() -> Iterator[None]:
    try:
        yield
    except TestbedError as error:
        _fail(error)


def _shape(function: Callable[..., Any]) -> Callable[..., Any]:
    options = [
        click.option("--hosts", type=click.IntRange(1, topology.MAX_HOSTS), help="Number of hosts."),
        click.option("--rate", type=_RATE, help="Rate of every link, for example 200mbit.", show_default="1gbit"),
        click.option(
            "--buffer",
            type=_SIZE,
            help="Buffer of every switch port, for example 256KiB.",
            show_default="the policy's, or 256KiB",
        ),
        click.option(
            "--loss", type=_LOSS, help="Loss from every host to its switch, for example 1%.", show_default="0%"
        ),
        click.option(
            "--delay",
            type=_DELAY,
            help="Delay from every host to its switch, for example 25ms; 0: none, but 'set' can change it.",
        ),
        click.option("--jitter", type=_DELAY, help="Up to this much more delay, drawn per packet; order is kept."),
        click.option(
            "--policy", type=click.Path(path_type=Path), help="QoS policy file of 'mlt switch': classes and thresholds."
        ),
        click.option(
            "--spines",
            type=click.IntRange(0, topology.MAX_SPINES),
            help="Number of spine switches; leaves spread flows over them.",
        ),
        click.option(
            "--leaves",
            type=click.IntRange(1, topology.MAX_LEAVES),
            help="Number of leaf switches.",
            show_default="2 with spines",
        ),
        click.option(
            "--queue",
            type=click.Choice(["ebpf", "red", "fifo"]),
            help="Type of the switch queues.",
            show_default="ebpf; without root fifo, with --policy red",
        ),
        click.option("--seed", type=click.IntRange(min=0), help="Seed of the random losses.", show_default="1"),
        click.option(
            "--topology",
            "-f",
            type=click.Path(path_type=Path),
            help="Topology file (YAML); the options above override it.",
        ),
    ]
    for option in reversed(options):
        function = option(function)
    return function


def _topology(file: Path | None, options: dict[str, Any]) -> Topology:
    given = {key: value for key, value in options.items() if value is not None}
    if "policy" in given:
        given["policy"] = str(given["policy"])
    if file is not None:
        return topology.load(file, **given)
    if "hosts" not in given:
        raise BadTopologyError("the number of hosts is missing: give --hosts, or a --topology file")
    return topology.make(given)


def _usable(shape: Topology) -> Topology:
    """``shape`` with a queue that this host can make, if it names none; says which."""
    shape, note = requirements.with_usable_queue(shape)
    if note is not None:
        print_lines(f"mlt testbed: {note}", err=True)
    return shape


def _check_command(command: tuple[str, ...]) -> None:
    if not command:
        raise BadTopologyError("no command; write it after --, for example: -- python YOUR_SCRIPT.py")
    if (problem := unrunnable(command[0])) is not None:  # before a network is made for it
        status, text = problem
        show_problem(text, is_usage=False)
        raise SystemExit(status)


@app.command()
@_shape
@click.option("--name", metavar="NAME", help="Testbed name.", show_default="run-PID")
@click.option("--grace", type=UnitOption(TIME), default=5.0, show_default=True,
              help="Time for the other commands to end after one host's command failed.")  # fmt: skip
@click.option("--port", type=click.IntRange(1, 65_534), default=beds.DEFAULT_PORT, show_default=True,
              help="MASTER_PORT.")  # fmt: skip
@click.option("--ranks-per-host", type=click.IntRange(1, 64), default=1, show_default=True,
              help="Number of COMMANDs on each host, with adjacent ranks.")  # fmt: skip
@click.option("--counters", is_flag=True, help="Show links and queues at the end, like 'status'.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def run(
    name: str | None,
    grace: float,
    port: int,
    ranks_per_host: int,
    counters: bool,
    command: tuple[str, ...],
    **options: Any,
) -> None:
    """Run COMMAND once per host and remove everything afterwards.

    COMMAND has RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT, MLT_JOB_SECRET, MLT_INTERFACE
    and GLOO_SOCKET_IFNAME in its environment. Exits with 0 if every COMMAND does. Without root it enters a user
    namespace of its own.
    """
    with _errors():
        _check_command(command)
        shape = _topology(options.pop("topology"), options)
        name = topology.check_name(name or f"run-{os.getpid()}")
        _enter_user_namespace()
        bed = Testbed(_usable(shape), name=name)
        code = 0

        def failed(ending: runner.Ending) -> None:
            _say(f"{ending.name} {ending}; the others have {format_time(grace)} to end")

        try:
            with runner.interruptible():
                try:
                    bed.up()
                    outcome = runner.run(
                        bed,
                        command,
                        grace=grace,
                        port=port,
                        ranks_per_host=ranks_per_host,
                        failed=failed,
                        lingering=_say,
                    )
                    code = outcome.code
                    _report(bed, outcome, counters)
                finally:
                    with runner.uninterrupted():
                        bed.down()
        except KeyboardInterrupt as error:
            _say("interrupted: every command was ended and the testbed is removed")
            code = interrupted(error)
    raise SystemExit(code)


def _report(bed: Testbed, outcome: runner.Outcome, counters: bool) -> None:
    for rank, ending in enumerate(outcome.endings):
        if ending.ended_by_us:
            _say(f"{ending.name} (rank {rank}) was ended, because another host's command failed")
        elif ending.code or ending.was_stopped:
            _say(f"{ending.name} (rank {rank}) {ending}")
    _say(f"{outcome.seconds:.2f} s; {report.summary(bed)}")
    if counters:
        _console(err=True).print_table(report.tables(bed))


def _say(text: str) -> None:
    click.echo(f"mlt testbed: {text}", err=True)


def _enter_user_namespace() -> None:
    """Restart inside a user namespace as root, unless this process already has all privileges."""
    if os.environ.get(requirements.USER_NAMESPACE):
        requirements.private_run()
        return
    if requirements.is_privileged():
        return
    problem = requirements.user_namespace_problem()
    if problem is not None:
        raise MissingError([problem])
    os.environ[requirements.USER_NAMESPACE] = "1"
    os.execvp("unshare", ["unshare", "-Urnm", sys.executable, "-m", "mlt.cli.main", *sys.argv[1:]])


@app.command()
@_shape
@click.option("--name", metavar="NAME", default=DEFAULT_NAME, show_default=True, help="Testbed name.")
def up(name: str, **options: Any) -> None:
    """Create a testbed that stays until 'mlt testbed down'. Needs root."""
    with _errors(), _interrupted(), runner.interruptible():
        bed = Testbed(_usable(_topology(options.pop("topology"), options)), name=name)
        bed.up(stays=True)
        for host, address in bed.layout.hosts.items():
            click.echo(f"{host} {address} (at {bed.layout.leaf_of[host]})")
        which = "" if name == DEFAULT_NAME else f" --name {name}"
        click.echo(f"try: mlt testbed exec{which} host0 -- ip -br address    then: mlt testbed down{which}", err=True)


@contextlib.contextmanager
def _interrupted() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt as error:
        raise SystemExit(interrupted(error)) from None


def _attach(name: str | None) -> Testbed:
    return Testbed.attach(name or os.environ.get(beds.VARIABLE) or _chosen())


def _chosen() -> str:
    """The testbed of a command line without a name, which this prints."""
    name = state.only_own().name
    _say(f"using testbed {name!r}, the only one of yours")
    return name


def _console(*, err: bool = False) -> Any:
    stream = sys.stderr if err else sys.stdout
    return Output(stderr=err, width=None if stream.isatty() else 140)


def _named(function: Callable[..., Any]) -> Callable[..., Any]:
    return click.option(
        "--name",
        metavar="NAME",
        help="Testbed name.",
        show_default="the one that this runs in, else the only one of your 'up'",
    )(function)


@app.command(name="exec")
@_named
@click.argument("host")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def exec_(name: str | None, host: str, command: tuple[str, ...]) -> None:
    """Run COMMAND on HOST in the foreground: same terminal, its exit code."""
    with _errors():
        _check_command(command)
        bed = _attach(name)
        words, env = bed.command(host, command), {**os.environ, **bed.environment(host)}
        try:
            os.execvpe(words[0], words, env)
        except OSError as error:
            raise TestbedError(f"{words[0]}: {error.strerror}") from None


@app.command()
@_named
@click.option("--json", metavar="FILE|-", type=TEXT_FILE,
              help="JSON file to write; -: standard output.")  # fmt: skip
@click.option("--all", "everything", is_flag=True, help="Show idle queues too.")
@click.option("--watch", is_flag=True, help="Repeat every second, until Ctrl-C or until the testbed is removed.")
def status(name: str | None, json: Path | None, everything: bool, watch: bool) -> None:
    """Show links and queues, live: packets sent, marked, dropped by cause, bytes queued."""
    with _errors(), _interrupted():
        bed = _attach(name)
        if json is not None:
            try:
                write_json(json, report.as_json(bed))
            except WriteFailedError as error:
                _fail(error)
        console = _console(err=is_stdout(json))
        console.print_table(report.tables(bed, everything=everything))
        if watch:
            _repeat(bed.name, console, everything)


_WATCH_FAILURES = 5  # one after another, which end --watch


def _repeat(name: str, console: Any, everything: bool) -> None:
    """The tables every second until the testbed is removed: in place on a terminal, one after another elsewhere."""
    failures = 0
    while True:
        time.sleep(1)
        if name not in (found.name for found in state.all_states()):
            return
        try:
            tables = report.tables(Testbed.attach(name), everything=everything)
        except Exception:
            # The testbed may be in the middle of its removal, and lack any of its parts.
            failures += 1
            if failures == _WATCH_FAILURES:
                raise
            continue
        failures = 0
        if console.is_terminal:
            console.clear()
        console.print_table(tables)


@app.command(name="set")
@_named
@click.argument("link", required=False)
@click.option("--loss", type=_LOSS, help="Loss, 1% or 0.01; without LINK from every host to its switch.")
@click.option("--delay", type=_DELAY, help="Delay, for example 25ms; without LINK from every host to its switch.")
@click.option("--jitter", type=_DELAY, help="Jitter, for example 2ms; without LINK from every host to its switch.")
@click.option("--direction", type=click.Choice(["up", "down"]),
              help="Direction of --loss, --delay and --jitter with LINK.", show_default="both")  # fmt: skip
@click.option("--rate", type=_RATE, help="Rate, for example 200mbit; without LINK on all links.")
@click.option("--buffer", type=_SIZE, help="Buffer of switch ports, for example 64KiB; without LINK of all.")
@click.option("--break", "break_", is_flag=True, help="Unplug LINK.")
@click.option("--heal", is_flag=True, help="Plug LINK in again.")
def set_(
    name: str | None,
    link: str | None,
    loss: float | None,
    delay: float | None,
    jitter: float | None,
    direction: str | None,
    rate: int | None,
    buffer: int | None,
    break_: bool,
    heal: bool,
) -> None:
    """Change LINK (host2, leaf0-spine1), or all links, while everything runs."""
    with _errors():
        values = {"loss": loss, "delay": delay, "jitter": jitter, "rate": rate, "buffer": buffer}
        given = {field: value for field, value in values.items() if value is not None}
        if not given and not break_ and not heal:
            raise BadTopologyError(
                "nothing to set; give --loss, --delay, --jitter, --rate, --buffer, --break or --heal"
            )
        if (break_ or heal) and link is None:
            raise BadTopologyError("--break and --heal need a LINK, for example host2")
        if break_ and heal:
            raise BadTopologyError("--break and --heal at once")
        if direction is not None and (link is None or not given.keys() & {"loss", "delay", "jitter"}):
            raise BadTopologyError("--direction goes with --loss, --delay or --jitter, and a LINK")
        bed = _attach(name)
        # Validate all values before applying the first.
        bed.topology.changed(**given)
        if link is not None:
            bed.topology.with_link(link)
        if delay is not None or jitter is not None:
            bed.set_delay(delay, jitter=jitter, link=link, direction=direction)  # rejects links without a delay line
        if loss is not None:
            bed.set_loss(loss, link=link, direction=direction)
        if rate is not None:
            bed.set_rate(rate, link=link)
        if buffer is not None:
            bed.set_buffer(buffer, link=link)
        if link is not None and break_:
            bed.break_link(link)
        if link is not None and heal:
            bed.heal_link(link)


@app.command()
@click.option("--name", metavar="NAME", help="Testbed name.", show_default="the only one of your 'up'")
@click.option("--all", "everything", is_flag=True, help="Remove every testbed of this host.")
def down(name: str | None, everything: bool) -> None:
    """End every process in a testbed and remove it, and also the leftovers of crashed runs."""
    with _errors(), runner.uninterrupted():
        if everything and name is not None:
            raise BadTopologyError(f"--name {name} and --all: give one of them")
        if not requirements.is_privileged():
            raise MissingError(requirements.problems(topology.make({"hosts": 1})))
        with state.locked():
            swept = cleanup.sweep()
        for gone in swept:
            click.echo(f"removed {gone}, whose process had ended")
        if everything:
            for found in state.all_states():
                cleanup.remove(found.name)
                click.echo(f"removed {found.name}")
        elif name is None:
            if swept and not state.own():
                return  # the leftovers were what there was to remove
            cleanup.remove(name := state.only_own().name)
            click.echo(f"removed {name}")
        elif name not in swept:
            cleanup.remove(name)
            click.echo(f"removed {name}")


@app.command()
def schema() -> None:
    """Print the topology file's JSON schema, for editors."""
    click.echo(dumps(topology.json_schema(), indent=2))
