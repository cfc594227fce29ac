"""``mlt perf``: goodput and latency of this transport and of others, on the same network in the same run."""

from __future__ import annotations

import os
import sys
import time
from enum import Enum
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from mlt._shared import variables
from mlt._shared.addresses import parse_target
from mlt._shared.extras import how_to_install
from mlt._shared.json_lines import shown
from mlt._shared.output_files import UnwritableError
from mlt._shared.processes import interruptible
from mlt.cli.ending import interrupted
from mlt.cli.output import TABLE_WIDTH, Output
from mlt.cli.output_option import PICTURE, TEXT_FILE
from mlt.cli.style import App, is_stdout, show_error, status_of
from mlt.cli.unit_option import LOSS, RATE, SIZE, TIME, Quantity, UnitOption
from mlt.errors import ConfigError, MltError
from mlt.job.interfaces import VARIABLE
from mlt.options import arguments
from mlt.options.limits import MAX_RANKS
from mlt.perf import report, session
from mlt.perf.options import AUTOMATIC, DEFAULT_SIZES, Options
from mlt.perf.problem import BadOptionError, PerfError

app = App()

_PICTURES = (".png", ".svg", ".pdf")
_RATE, _SIZE = UnitOption(RATE, whole=True), UnitOption(SIZE, whole=True)


class Pattern(str, Enum):
    p2p = "p2p"
    incast = "incast"
    alltoall = "alltoall"
    allreduce = "allreduce"
    broadcast = "broadcast"
    reduce = "reduce"
    allgather = "allgather"
    reducescatter = "reducescatter"


class Stop(str, Enum):
    patient = "patient"
    eager = "eager"


class DatapathChoice(str, Enum):
    auto = "auto"
    udp = "udp"
    vma = "vma"
    xdp = "xdp"


class Priority(str, Enum):
    magnitude = "magnitude"
    none = "none"


@app.command()
def perf(
    *,
    host: Annotated[
        str | None,
        typer.Argument(
            metavar="HOST[:PORT]", help="Host where 'mlt perf --serve' runs, such as node2 or [fd00::2]:29600."
        ),
    ] = None,
    local: Annotated[bool, typer.Option("--local", help="Run all ranks on this host.")] = False,
    serve: Annotated[bool, typer.Option("--serve", help="Wait for clients on other hosts, until Ctrl-C.")] = False,
    once: Annotated[bool, typer.Option("--once", help="End after one run, with --serve.")] = False,
    port: Annotated[
        int, typer.Option(min=1, max=65_535, help="TCP port of --serve, here or on HOST.")
    ] = session.DEFAULT_PORT,
    pattern: Annotated[Pattern, typer.Option(help="Traffic pattern.")] = Pattern.p2p,
    size: Annotated[
        str | None,
        typer.Option(metavar="SIZE,...", help="Tensor sizes, comma-separated.", show_default="64KiB,1MiB,25MiB"),
    ] = None,
    ranks: Annotated[
        int | None, typer.Option(help="Number of ranks with --local.", show_default="2, or 4 for incast")
    ] = None,
    rounds: Annotated[
        int | None, typer.Option(help="Timed rounds per size.", show_default="1000, 200 or 20, by size")
    ] = None,
    turns: Annotated[int, typer.Option(help="Number of times that the transports take turns at each size.")] = 5,
    compare: Annotated[
        str,
        typer.Option(
            metavar="TRANSPORT,...",
            help="Transports to compare with, comma-separated: tcp, gloo, mpi, mpi-shm, raw-udp; all: those installed.",
        ),
    ] = "",
    loss_bound: Annotated[
        str,
        typer.Option(metavar="LOSS,...", help="Loss bounds of mlt below 100%, such as 1% or 0.01, comma-separated."),
    ] = "0",
    stop: Annotated[
        Stop, typer.Option(help="Stop policy of mlt: when to complete without the missing segments.")
    ] = Stop.patient,
    priority: Annotated[
        Priority, typer.Option(help="Segment priorities of mlt: by gradient magnitude, or none (no sampling).")
    ] = Priority.magnitude,
    algorithm: Annotated[
        str,
        typer.Option(
            metavar="ALGORITHM,...",
            help=(
                "Algorithms of mlt's collective, comma-separated: automatic, direct, two-level; of allreduce also "
                "central, ring, halving; of broadcast and reduce also chain."
            ),
        ),
    ] = AUTOMATIC,
    segment_bytes: Annotated[
        int | None,
        typer.Option(parser=_SIZE, help="Payload bytes per packet.", show_default="from the MTU"),
    ] = None,
    paths: Annotated[int, typer.Option(help="Paths per peer.")] = 1,
    datapath: Annotated[
        DatapathChoice, typer.Option(help="Datapath of mlt; udp uses no shared memory.")
    ] = DatapathChoice.auto,
    rate: Annotated[
        int | None,
        typer.Option(
            parser=_RATE, help="Offered rate, for example 1gbit, to measure CPU per GB.", show_default="unlimited"
        ),
    ] = None,
    line_rate: Annotated[
        int | None,
        typer.Option(
            parser=_RATE, help="Line rate that mlt assumes, for example 10gbit.", show_default="the interface's"
        ),
    ] = None,
    faults: Annotated[
        str, typer.Option(metavar="FAULTS", help="Faults to inject into mlt's packets, for example drop=0.01,seed=7.")
    ] = "",
    interface: Annotated[
        str | None,
        typer.Option(
            envvar=VARIABLE,
            metavar="INTERFACE",
            help="Interface to use.",
            show_default="the one towards the other ranks",
        ),
    ] = None,
    pin: Annotated[bool, typer.Option("--pin", help="Pin each rank to its own core, with --local.")] = False,
    timeout: Annotated[
        float,
        typer.Option(
            parser=UnitOption(TIME),
            help="Time limit of one operation, and for all ranks to connect, with a unit, e.g. 30s.",
        ),
    ] = 60.0,
    json: Annotated[
        Path | None,
        typer.Option(metavar="FILE|-", help="JSON file to write, samples included; -: standard output."),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Image file for the distribution of round times (.png, .svg or .pdf)."),
    ] = None,
) -> None:
    """Measure goodput and latency between ranks, over mlt and other transports.

    \b
    mlt perf --local --compare all
    mlt perf --serve
    mlt perf node1             on another host, if the first is node1
    mlt testbed run --hosts 4 --rate 200mbit --loss 1% -- mlt perf --pattern allreduce --compare gloo
    mlt perf --local --ranks 8 --pattern allreduce --size 4KiB,64KiB --algorithm direct,ring,halving
    mlt testbed run --hosts 2 --rate 100mbit --delay 25ms --jitter 2ms -- mlt perf --compare tcp --loss-bound 0,0.1

    Without HOST, --local and --serve it is one rank of a job (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT), of which
    rank 0 prints.
    """
    try:
        mode = _mode(host, local=local, serve=serve)
        options = Options(
            pattern=pattern.value,
            sizes=tuple(round(one) for one in _quantities("--size", size, SIZE)) if size is not None else DEFAULT_SIZES,
            ranks=ranks if ranks is not None else _default_ranks(mode, pattern.value),
            rounds=rounds,
            turns=turns,
            loss_bounds=tuple(_quantities("--loss-bound", loss_bound, LOSS)),
            stop=stop.value,
            priority=priority.value,
            algorithms=tuple(_list("--algorithm", algorithm)),
            compare=tuple(_list("--compare", compare)),
            segment_bytes=segment_bytes,
            paths=paths,
            datapath=datapath.value,
            rate=rate,
            line_rate=line_rate,
            faults=faults,
            pin=pin,
            timeout=timeout,
        )
        if mode != "job" or variables.integer(os.environ, "RANK", minimum=0, maximum=MAX_RANKS) == 0:  # rank 0 writes
            _check_outputs(json, plot)
        if mode == "--local" and datapath is DatapathChoice.xdp and interface in (None, "lo"):
            raise BadOptionError(
                "--datapath xdp: AF_XDP does not support loopback, which --local uses; run mlt perf between hosts"
            )
        if host is not None:
            host, port = _target(host, port)
        with interruptible():
            _run(mode, options, host or "", port, interface, once=once, json=json, plot=plot)
    except MltError as error:
        show_error(error)
        raise SystemExit(status_of(error)) from None
    except KeyboardInterrupt as error:
        typer.echo("mlt perf: interrupted: every process was ended", err=True)
        raise SystemExit(interrupted(error)) from None


def _target(host: str, port: int) -> tuple[str, int]:
    try:
        return parse_target(host, port)
    except ConfigError as error:
        raise BadOptionError(f"HOST: {error}") from None


def _check_outputs(json: Path | None, plot: Path | None) -> None:
    for name, option, path in (("--json", TEXT_FILE, json), ("--plot", PICTURE, plot)):
        try:
            if path is not None:
                option.read(path)
        except UnwritableError as error:
            raise BadOptionError(f"{name}: {error}") from None
    if json is not None and plot is not None and json.absolute() == plot.absolute():
        raise BadOptionError(f"--json and --plot are both {plot}: the second would replace the first")


def _mode(host: str | None, *, local: bool, serve: bool) -> str:
    chosen = [
        name for name, is_chosen in (("HOST", host is not None), ("--local", local), ("--serve", serve)) if is_chosen
    ]
    if not chosen and variables.text(os.environ, "RANK") is None:
        raise BadOptionError(
            "give --local, --serve, HOST, or a job: RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT in the "
            "environment (mlt testbed run and torchrun set them)"
        )
    return chosen[0] if chosen else "job"


def _default_ranks(mode: str, pattern: str) -> int:
    if mode == "job":
        size = variables.integer(os.environ, "WORLD_SIZE", minimum=1, maximum=MAX_RANKS)
        if size is None:
            raise BadOptionError("WORLD_SIZE is not set; it is the number of ranks")
        return size
    return 4 if pattern == "incast" and mode == "--local" else 2


def _list(option: str, text: str) -> list[str]:
    """The words between the commas, of which one may end the list; none if the option is empty."""
    parts = [part.strip() for part in text.strip().removesuffix(",").split(",")]
    if text.strip() and not all(parts):
        raise BadOptionError(f"{option} {text}: an entry is empty")
    return [part for part in parts if part]


def _quantities(option: str, text: str, quantity: Quantity) -> list[float]:
    try:
        return [quantity.named(option, one) for one in _list(option, text)]
    except ValueError as error:
        raise BadOptionError(str(error)) from None


def _run(
    mode: str,
    options: Options,
    host: str,
    port: int,
    interface: str | None,
    *,
    once: bool,
    json: Path | None,
    plot: Path | None,
) -> None:
    notes = Console(stderr=True, highlight=False)

    def say(text: str) -> None:
        notes.print(shown(text), markup=False, soft_wrap=True)

    if mode == "--serve":
        session.serve(port, interface, once=once, say=say)
        return
    arguments.resolve({}, os.environ)  # the variables that every rank will read
    if plot is not None and plot.suffix not in _PICTURES:
        raise BadOptionError(f"--plot {plot}: the name ends in the format: {', '.join(_PICTURES)}")
    if plot is not None and find_spec("matplotlib") is None:  # before a long measurement
        raise PerfError(f"--plot needs matplotlib: {how_to_install('perf', 'matplotlib')}")
    with _Display(notes) as display:
        if mode == "--local":
            result = session.run_local(options, interface, display.observe)
        elif mode == "HOST":
            result = session.run_client(options, host, port, interface, display.observe)
        else:
            # The environment's choice is the job's to read, beside MLT_HOST.
            given = None if interface == os.environ.get(VARIABLE) else interface
            found = session.run_job(options, os.environ, given, display.observe, say)
            if found is None:
                return
            result = found
    # With "--json -" standard output has the JSON and nothing else.
    stream = sys.stderr if is_stdout(json) else sys.stdout
    console = Output(file=stream, width=None if stream.isatty() else TABLE_WIDTH, highlight=False)
    for table in report.tables(result):
        console.print_table(table)
    console.print_text(report.LEGEND)
    for skipped in result.skipped:
        console.print_text(f"not compared with {skipped.transport}: {skipped.why}")
    if is_stdout(json):
        sys.stdout.write(report.as_json(result))
    elif json is not None:
        report.write_json(result, json)
    if plot is not None:
        report.write_plot(result, plot)
    written = ", ".join(str(path) for path in (json, plot) if path is not None)
    console.print(f"{result.seconds:.1f} s in all" + (f"; written: {written}" if written else ""), markup=False)


class _Display:
    """A progress bar on a terminal; elsewhere a line every few seconds."""

    LINE_SECONDS = 10.0

    def __init__(self, console: Console) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._console = console
        self._progress = Progress(*columns, console=console, transient=True) if console.is_terminal else None
        self._task = self._progress.add_task("starting", total=None) if self._progress is not None else None
        self._said = time.monotonic()

    def __enter__(self) -> _Display:
        if self._progress is not None:
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.stop()

    def observe(self, done: int, total: int, text: str) -> None:
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, description=text, completed=done, total=total)
        elif time.monotonic() - self._said >= self.LINE_SECONDS:
            self._said = time.monotonic()
            self._console.print(f"mlt perf: {done:,} of {total:,} rounds; {text}", markup=False)
