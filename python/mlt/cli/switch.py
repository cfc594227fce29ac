"""``mlt switch``: from one QoS policy file to an applied and verified switch."""

from __future__ import annotations

import difflib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import click
from rich import box
from rich.table import Table

from mlt._shared.counts import count_of
from mlt._shared.output_files import WriteFailedError
from mlt._shared.text_files import UnreadableError, read_text
from mlt.cli import switch_apply, switch_policy, switch_verify
from mlt.cli.click_style import Group
from mlt.cli.ending import USAGE
from mlt.cli.layout import print_lines
from mlt.cli.output import TABLE_WIDTH, Output
from mlt.cli.output_option import FOLDER
from mlt.cli.style import show_error, status_of, write_output
from mlt.cli.switch_options import POLICY, PORTS, TARGET, ports_of
from mlt.switch_configs import check as checking
from mlt.switch_configs import generator
from mlt.switch_configs.behaviour import by_port, condensed, differences
from mlt.switch_configs.capabilities import Feature
from mlt.switch_configs.errors import SwitchConfigError
from mlt.switch_configs.platforms import platforms, why_none
from mlt.switch_configs.policy import Policy, json_schema, parse
from mlt.switch_configs.policy import load as load_policy
from mlt.switch_configs.registry import target as find_target
from mlt.switch_configs.registry import targets as all_targets


@click.group(cls=Group)
def app() -> None:
    """Switch QoS for bounded-loss traffic: one policy file, every switch.

    \b
    1. policy    derive a policy from a model's layers (or copy one from examples/switch)
    2. check     check the rules; write every target, read it back and compare
    3. generate  write one target's files; each file's header says how to apply it
    4. apply     push it instead: --dry-run, --confirm 5m, --undo
    5. verify    compare marks and drops of each class with the policy
    6. rollback  print the exact undo

    The hosts take their DSCPs from the same file: MLT_QOS_POLICY=POLICY on every rank.

    The complete procedure, with an example: docs/switch.md.
    """


app.add_command(switch_policy.policy)
app.add_command(switch_apply.apply)
app.add_command(switch_verify.verify)

_OUTPUT = click.option(
    "--output",
    "-o",
    metavar="FOLDER",
    type=FOLDER,
    help="Folder for the files; without it they are printed.",
)


_RUNNING = click.option(
    "--running",
    type=click.Path(path_type=Path),
    help="Current configuration of the device (sonic: config_db.json): the undo then restores what was replaced.",
)


def _common(*options: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def wrap(function: Any) -> Any:
        for option in reversed(options):
            function = option(function)
        return function

    return wrap


def _fail(error: Exception) -> NoReturn:
    show_error(error)
    raise SystemExit(status_of(error)) from error


def _load(path: Path) -> Policy:
    try:
        return load_policy(path)
    except SwitchConfigError as error:
        _fail(error)


def _ports(text: str | None) -> tuple[str, ...] | None:
    if text is None:
        return None
    try:
        return ports_of(text)
    except ValueError as error:
        _fail(error)


def _generate(policy: Policy, target: str, ports: str | None, running: Path | None = None) -> generator.Generated:
    try:
        text = None if running is None else read_text(running)
        return generator.generate(policy, target, ports=_ports(ports), running=text)
    except (SwitchConfigError, UnreadableError) as error:
        _fail(error)


def _emit(files: dict[str, str], directory: Path | None) -> None:
    if directory is None:
        for name, text in files.items():
            if len(files) > 1:
                click.echo(f"==> {name} <==")
            click.echo(text, nl=False)
        return
    try:
        for name, text in files.items():
            write_output(directory / name, text)
    except WriteFailedError as error:
        _fail(error)


@app.command()
@_common(POLICY, TARGET, PORTS, _RUNNING, _OUTPUT)
def generate(policy: Path, target: str, ports: str | None, running: Path | None, output: Path | None) -> None:
    """Write one switch's configuration; fails if the switch cannot express the policy."""
    _emit(_generate(_load(policy), target, ports, running).apply, output)


@app.command()
@_common(POLICY, TARGET, PORTS, _RUNNING, _OUTPUT)
def rollback(policy: Path, target: str, ports: str | None, running: Path | None, output: Path | None) -> None:
    """Print the exact undo of what generate wrote for the same policy, target and ports."""
    generated = _generate(_load(policy), target, ports, running)
    if not generated.undo:
        how = generated.target.steps(generated.apply).undo
        _fail(SwitchConfigError(f"{generated.target.spec}: no undo is known without --running: {'; '.join(how)}"))
    _emit(generated.undo, output)


@app.command()
@_common(
    POLICY,
    click.option(
        "--target",
        "-t",
        metavar="SYSTEM",
        multiple=True,
        help="Switch system to check ('mlt switch targets' lists them); repeatable.",
        show_default="the policy's, or all",
    ),
    PORTS,
    click.option("--validators", is_flag=True, help="Run every installed third-party validator too."),
)
def check(policy: Path, target: tuple[str, ...], ports: str | None, validators: bool) -> None:
    """Check the rules, write for every target, read each text back and compare all targets pairwise."""
    try:
        parsed = parse(read_text(policy), source=str(policy))
        names = None if not target else [str(generator.device(parsed, name).spec) for name in target]
        report = checking.check(parsed, names=names, ports=_ports(ports))
    except (SwitchConfigError, UnreadableError) as error:
        _fail(error)
    for finding in report.findings:
        click.echo(f"{finding.severity}: {policy}: {finding}")
    if any(finding.is_invalid for finding in report.findings):
        raise SystemExit(USAGE)
    ok = report.ok
    table = Table("target", "result", "note", title="targets")
    for result in report.results:
        table.add_row(result.target, result.status, result.detail)
    if report.results:
        _print(table)
    for pair in report.pairs:
        for difference in pair.unexplained:
            click.echo(f"difference: {pair.left} against {pair.right}: {difference}")
    for line in _summary(report):
        print_lines(line)
    if validators and report.results:
        ok = _validate(parsed, report) and ok
    raise SystemExit(0 if ok else 1)


def _summary(report: checking.Report) -> list[str]:
    lines = []
    if refused := [result.target for result in report.results if result.status == "refused"]:
        lines.append(
            f"{len(refused)} of {len(report.results)} targets cannot express the policy unchanged "
            f"({', '.join(refused)}); the notes give the reason and the change; --target checks one target alone"
        )
    if skipped := [result.target for result in report.results if result.status == "skipped"]:
        lines.append(
            f"{len(skipped)} of {len(report.results)} targets are not checked ({', '.join(skipped)}): the notes say "
            "what is missing on this machine"
        )
    if report.pairs:
        accepted, near = (sum(getattr(pair, name) for pair in report.pairs) for name in ("accepted", "near"))
        disagree = sum(bool(pair.unexplained) for pair in report.pairs)
        lines.append(
            f"{len(report.pairs)} pair{'s'[: len(report.pairs) - 1]} of those that are ok compared, {disagree} "
            f"disagree; settings that differ: {accepted:,} where the policy accepts it, {near:,} by no more than "
            "rounding or the least distance between two thresholds"
        )
    return lines


def _validate(policy: Policy, report: checking.Report) -> bool:
    from mlt.switch_configs.validators import validate_all

    table = Table("target", "validator", "result", title="third-party validators")
    ok = True
    for verdict in validate_all(policy, [r.generated for r in report.results if r.generated is not None]):
        ok = ok and verdict.problems == ()
        outcome = verdict.skipped or ("accepts" if not verdict.problems else "; ".join(verdict.problems))
        table.add_row(verdict.target, verdict.validator, outcome if not verdict.skipped else f"skipped: {outcome}")
    _print(table)
    return ok


@app.command()
@_common(POLICY, click.argument("other", type=click.Path(path_type=Path)), TARGET, PORTS)
def diff(policy: Path, other: Path, target: str, ports: str | None) -> None:
    """Compare what the QoS of POLICY's ports means with OTHER: a policy (.yaml) or a device's whole configuration.

    OTHER of a device, whose lines that are not QoS are skipped:

    \b
    sonic                  config_db.json
    eos, nxos, os10, onyx  show running-config
    junos                  show configuration, with or without "| display set"
    cumulus                nv config show -o commands

    Exits with 1 if the meaning differs or a QoS statement could not be read.
    """
    ours = _generate(_load(policy), target, ports)
    if other.suffix in (".yaml", ".yml"):
        theirs = _generate(_load(other), str(ours.target.spec), ports)  # one device, whatever OTHER targets
        found = differences(ours.behaviour, theirs.behaviour)
        for line in by_port(condensed(found), ours.behaviour):
            click.echo(f"meaning: {line}")
        left, right = (_body(files, ours.target.comment) for files in (ours.apply, theirs.apply))
        for line in difflib.unified_diff(left, right, str(policy), str(other), lineterm="", n=1):
            click.echo(line)
        click.echo(f"{count_of(len(found), 'difference')} in meaning", err=True)
        raise SystemExit(1 if found else 0)
    try:
        found, reading = generator.compare_device(ours, read_text(other), name=other.name)
    except (SwitchConfigError, UnreadableError) as error:
        _fail(error)
    for kind, lines in (("meaning", condensed(found)), ("unread", reading.unread), ("kept", reading.kept)):
        for line in by_port(lines, ours.behaviour):
            click.echo(f"{kind}: {line}")
    counts = (
        f"{count_of(len(found), 'difference')} in meaning ({policy.name} against {other.name}), "
        f"{count_of(len(reading.unread), 'QoS statement')} not understood, "
        f"{count_of(reading.skipped, 'line or table', 'lines or tables')} that are not QoS skipped"
    )
    print_lines(counts, err=True)
    absent, ports_compared = sum(one.feature == "port" for one in found), len(ours.behaviour)
    if absent == ports_compared:
        print_lines(f"none of the policy's ports is in {other.name}; it should be {ours.target.whole}", err=True)
    elif absent:
        print_lines(
            f"{absent} of the policy's {ports_compared} ports are not in {other.name}, which should be "
            f"{ours.target.whole}; --ports chooses the ports to compare",
            err=True,
        )
    raise SystemExit(1 if found or reading.unread else 0)


def _body(files: dict[str, str], comment: str) -> list[str]:
    """Lines without headers and marks of unconfirmed lines."""
    return [
        line
        for name, text in files.items()
        if name not in ("README.txt", "patch.json")
        for line in text.splitlines()
        if not line.lstrip().startswith(comment)
    ]


@app.command("targets")
def list_targets() -> None:
    """List the targets and what each can express."""
    # A line break after a hyphen: the heading is no wider than what is below it.
    features = [feature.value.replace("-", "-\n") for feature in Feature]
    table = Table("target", *features, "ECT above max", "thresholds", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name, system in all_targets().items():
        caps = system.capabilities
        unit = "whole percent" if caps.threshold_unit_bytes is None else f"{caps.threshold_unit_bytes} B"
        table.add_row(name, *[caps.of(feature).level for feature in Feature], caps.above_max_ect, unit)
    _print(table)


@app.command()
@click.argument("target", required=False)
def facts(target: str | None) -> None:
    """Print what is known of a device (TARGET: system[/release][@platform]), each fact with its source.

    Without TARGET: the systems, and the platforms that are known of each.
    """
    if target is None:
        _list_platforms()
        return
    try:
        system = find_target(target)
    except SwitchConfigError as error:
        _fail(error)
    table = Table("fact", "value", "source", title=system.platform.title)
    for name, fact in system.platform.statements():
        value = fact.value
        if isinstance(value, tuple):
            value = ", ".join(
                " ".join(f"{k} {v}" for k, v in each.model_dump(exclude_none=True).items()) for each in value
            )
        table.add_row(name, str(value), fact.source if fact.confirmed else f"UNCONFIRMED: {fact.source}")
    _print(table)
    for note in system.platform.notes():
        print_lines(note, err=True)
    print_lines(system.of_release(), err=True)
    if why := why_none(system.name):
        print_lines(f"no model is described: {why}", err=True)
    else:
        print_lines(f"platforms of {system.name}: {', '.join(platforms(system.name))}", err=True)


def _list_platforms() -> None:
    table = Table("system", "platforms: system@platform", "what it is")
    for name, system in all_targets().items():
        table.add_row(name, ", ".join(platforms(name)) or f"none: {why_none(name)}", system.title)
    _print(table)
    print_lines("one of them: mlt switch facts sonic/202511@mlnx-sn2700 (system[/release][@platform])", err=True)


@app.command()
def schema() -> None:
    """Print the policy file's JSON schema, for editors."""
    click.echo(json.dumps(json_schema(), indent=2))


def _print(table: Any) -> None:
    Output(width=None if sys.stdout.isatty() else TABLE_WIDTH).print_table(table)
