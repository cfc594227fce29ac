"""``mlt switch verify``: compare a switch's counters with the policy, class by class."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import click
from rich.table import Table

from mlt._shared.text_files import read_text, reading
from mlt.cli.click_style import Command
from mlt.cli.layout import print_lines
from mlt.cli.output import TABLE_WIDTH, Output
from mlt.cli.output_option import TEXT_FILE
from mlt.cli.style import is_stdout, show_error, status_of, write_json
from mlt.cli.switch_options import POLICY, PORTS, TARGET, ports_of
from mlt.cli.unit_option import TIME, UnitOption
from mlt.switch_configs import counter_check, generator, telemetry
from mlt.switch_configs.counters import COUNTS, QueueCounters
from mlt.switch_configs.errors import SwitchConfigError
from mlt.switch_configs.policy import load as load_policy
from mlt.switch_configs.target import Target

_FILE = click.Path(path_type=Path, allow_dash=True)


@click.command(cls=Command)
@POLICY
@TARGET
@PORTS
@click.option("--input", "-i", "given", type=_FILE, help="File to read: JSON, telemetry, or the commands' output.")
@click.option("--before", type=_FILE, help="Earlier counters; the difference is checked.")
@click.option("--switch", "host", metavar="SWITCH", help="Switch to read, as for 'mlt switch apply'.")
@click.option(
    "--during",
    metavar="COMMAND",
    help="Shell command; the counters that change while it runs are checked, with --switch.",
)
@click.option(
    "--for",
    "seconds",
    metavar="TIME",
    type=UnitOption(TIME, above=0),
    help="Measuring time (10s, 5m); the counters that change within it are checked, with --switch.",
)
@click.option(
    "--partial", is_flag=True, help="Check the counters that were read, even if queues, ports or counters are missing."
)
@click.option("--json", "json_file", metavar="FILE|-", type=TEXT_FILE,
              help="JSON file for the counters, which --input and --before read; -: standard output.")  # fmt: skip
@click.option("--inventory", type=click.Path(path_type=Path), help="Inventory: Ansible's YAML or nornir's hosts file.")
@click.option("--known-hosts", type=click.Path(path_type=Path), help="File of further SSH host keys.")
def verify(
    policy: Path,
    target: str,
    ports: str | None,
    given: Path | None,
    before: Path | None,
    host: str | None,
    during: str | None,
    seconds: float | None,
    partial: bool,
    json_file: Path | None,
    inventory: Path | None,
    known_hosts: Path | None,
) -> None:
    """Print the show commands; or report drops, marks and queues per class, and compare them with the policy.

    Counters come from a file (--input) or a device (--switch). JSON is {port, queue, sent, marked, dropped_early,
    dropped_at_limit, queued_bytes} in a list, or OpenConfig's queue state: a gNMI Get, or Subscribe's lines.

    Exits with 1 if a class's counters contradict the policy, or if queues, ports or counters that this system has are
    missing (--partial accepts that). The last line names counters that the system never has; they do not count.
    """
    from mlt.switch_push.device import PushError

    try:
        asked = None if ports is None else ports_of(ports)
        if host is not None:
            generated, rows = _from_host(policy, host, target, asked, _wait(during, seconds), inventory, known_hosts)
        else:
            generated = generator.generate(load_policy(policy), target, ports=asked)
            if given is None:
                ports_of_all = len(generated.plan.ports)
                click.echo("\n".join(generated.target.verify_commands(generated.plan, ports=ports_of_all)))
                click.echo("then: mlt switch verify ... --input FILE with what they print", err=True)
                return
            rows = _read("--input", given, generated.target)
            if before is not None:
                rows = counter_check.since(rows, _read("--before", before, generated.target))
        rows = counter_check.named(generated.plan, rows)
        if json_file is not None:
            write_json(json_file, [dataclasses.asdict(row) for row in rows])
    except BrokenPipeError:
        raise
    except (PushError, SwitchConfigError, ValueError, OSError) as error:
        show_error(error)
        raise SystemExit(status_of(error)) from error
    _show({queue.number: queue.name for queue in generated.plan.queues}, rows, err=is_stdout(json_file))
    raise SystemExit(_conclude(generated, rows, partial=partial))


def _conclude(generated: generator.Generated, rows: list[QueueCounters], *, partial: bool) -> int:
    """Print the conclusion and return the exit status; a missing counter is a failure unless the system never has
    it."""
    plan, target = generated.plan, generated.target
    found = counter_check.check(plan, rows)
    for one in found:
        print_lines(f"{'error' if one.level == 'wrong' else 'note'}: {one}", err=True)
    missing = [*counter_check.unseen(plan, rows), *counter_check.uncounted(plan, rows, target.counts)]
    for what in missing:
        print_lines(
            f"{'note' if partial else 'error'}: not seen: {what}{'' if partial else '; --partial accepts that'}",
            err=True,
        )
    never = counter_check.uncounted(plan, rows, COUNTS - target.counts)
    unchecked = f"; not checked, because {target.name} does not count it: {', '.join(never)}" if never else ""
    wrong = sum(one.level == "wrong" for one in found)
    if wrong or (missing and not partial):
        # One line: the last.
        click.echo(
            f"{'contradicts the policy' if wrong else 'incomplete: some counters were not seen'}{unchecked}", err=True
        )
        return 1
    click.echo(f"matches the policy{', as far as seen' if missing or never else ''}{unchecked}", err=True)
    return 0


def _from_host(
    policy: Path,
    host: str,
    target: str,
    ports: tuple[str, ...] | None,
    wait: Callable[[], None] | None,
    inventory: Path | None,
    known_hosts: Path | None,
) -> tuple[generator.Generated, list[QueueCounters]]:
    from mlt.switch_push.hosts import open_device

    wanted = load_policy(policy)
    device = open_device(host, target, inventory=inventory, known_hosts=known_hosts)
    try:
        generated = generator.generate(wanted, device.target(target), ports=ports)
        rows = device.counters(generated.plan)
        if wait is not None:
            wait()
            rows = counter_check.since(device.counters(generated.plan), rows)
    finally:
        device.close()
    return generated, rows


def _wait(during: str | None, seconds: float | None) -> Callable[[], None] | None:
    if during is not None:
        command = during

        def run() -> None:
            code = subprocess.run(command, shell=True, check=False).returncode
            if code != 0:
                print_lines(f"note: {command!r} ended with {code}", err=True)

        return run
    if seconds is not None:
        length = seconds
        return lambda: time.sleep(length)
    return None


def _read(option: str, path: Path, target: Target) -> list[QueueCounters]:
    """The counters in a file. Raises ValueError that names the option and the file."""
    text = _text(path)
    try:
        return telemetry.read(text, target)
    except (SwitchConfigError, ValueError) as error:
        raise ValueError(f"{option} {path}: {error}") from None


def _text(path: Path) -> str:
    if str(path) != "-":
        return read_text(path)
    with reading("standard input"):
        return sys.stdin.read()


def _show(names: dict[int, str], rows: list[QueueCounters], *, err: bool) -> None:
    table = Table("port", "queue", "class", "sent", "marked", "dropped early", "dropped at limit", "bytes waiting")
    for row in rows:
        cells = (row.sent, row.marked, row.dropped_early, row.dropped_at_limit, row.queued_bytes)
        shown = ["?" if cell is None else str(cell) for cell in cells]
        if row.dropped_at_limit is None and row.dropped_at_limit_bytes is not None:
            shown[3] = f"{row.dropped_at_limit_bytes} B"
        table.add_row(row.port, str(row.queue), names.get(row.queue, "?"), *shown)
    stream = sys.stderr if err else sys.stdout
    Output(file=stream, width=None if stream.isatty() else TABLE_WIDTH).print_table(table)
