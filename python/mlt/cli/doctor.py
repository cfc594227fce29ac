"""``mlt doctor``: find problems on this host or between two hosts, and print the command that fixes each."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import NoReturn

import click

from mlt._shared.addresses import parse_target
from mlt._shared.json_lines import shown
from mlt._shared.output_files import WriteFailedError
from mlt._shared.ports import DOCTOR_OFFSET
from mlt.cli.click_style import Command
from mlt.cli.ending import interrupted
from mlt.cli.layout import wrapped
from mlt.cli.output_option import TEXT_FILE
from mlt.cli.style import is_stdout, show_error, status_of, write_json
from mlt.cli.unit_option import TIME, UnitOption
from mlt.diagnosis import frameworks
from mlt.diagnosis.doctor import Finding, examine
from mlt.diagnosis.messages import DEFAULT_PORT
from mlt.errors import ConfigError, MltError
from mlt.switch_configs.errors import SwitchConfigError

_MARKS = {"ok": "ok       ", "problem": "PROBLEM  ", "optional": "optional "}


@click.command(cls=Command)
@click.argument("target", metavar="[HOST[:PORT]|FILE]", required=False)
@click.option("--serve", is_flag=True, help="Serve 'mlt doctor HOST' of other hosts, until Ctrl-C.")
@click.option("--once", is_flag=True, help="End after one examination, with --serve.")
@click.option(
    "--job", is_flag=True, help="Run as one rank of a job: rank 0 serves, the others examine the network to rank 0."
)
@click.option("--framework", type=click.Choice(frameworks.NAMES), metavar="NAME",
              help=f"Check whether mlt works here with a framework: {', '.join(frameworks.NAMES)}.")  # fmt: skip
@click.option("--topology", is_flag=True,
              help="Print the best reduction among the GPUs of this host, or of that in FILE.")  # fmt: skip
@click.option("--recorder", metavar="FOLDER", type=click.Path(path_type=Path),
              help="Compare the files that the ranks' flight recorders wrote (MLT_FLIGHT_RECORDER).")  # fmt: skip
@click.option(
    "--port",
    type=click.IntRange(1, 65_535),
    help="TCP port of --serve, here or on HOST, or of rank 0 with --job.",
    show_default=f"{DEFAULT_PORT}; with --job MASTER_PORT + {DOCTOR_OFFSET}",
)
@click.option(
    "--interface",
    metavar="INTERFACE",
    help="Interface to examine from or to serve on.",
    show_default="MLT_INTERFACE, else by the routes",
)
@click.option("--policy", type=click.Path(), help="QoS policy file of 'mlt switch', instead of MLT_QOS_POLICY.")
@click.option(
    "--switch",
    metavar="SWITCH",
    help="Switch whose counters to read, as 'mlt switch verify --switch' does; needs a policy.",
)
@click.option(
    "--target",
    "-t",
    "system",
    metavar="SYSTEM",
    default="linux",
    show_default=True,
    help="Switch system, with --switch.",
)
@click.option(
    "--inventory", type=click.Path(path_type=Path), help="Inventory file with the switch's login, with --switch."
)
@click.option("--known-hosts", type=click.Path(path_type=Path), help="File of further SSH host keys, with --switch.")
@click.option("--connect-timeout", type=UnitOption(TIME, minimum=1), default=60.0, show_default=True,
              help="Time limit for all ranks to connect, with a unit, e.g. 30s; with --job.")  # fmt: skip
@click.option(
    "--fix",
    is_flag=True,
    help="Print the commands that fix the findings, optional ones as comments; run none of them.",
)
@click.option("--json", metavar="FILE|-", type=TEXT_FILE,
              help="JSON file for the findings; -: standard output.")  # fmt: skip
def app(
    target: str | None,
    serve: bool,
    once: bool,
    job: bool,
    framework: str | None,
    topology: bool,
    recorder: Path | None,
    port: int | None,
    interface: str | None,
    policy: str | None,
    switch: str | None,
    system: str,
    inventory: Path | None,
    known_hosts: Path | None,
    connect_timeout: float,
    fix: bool,
    json: Path | None,
) -> None:
    """Check this host, the path to another host, or a switch.

    Without HOST: check the library, interfaces, socket buffers, limits, kernel features, installed extras and the
    testbed's requirements, in about two seconds.

    With HOST, where 'mlt doctor --serve' runs: check the path in both directions, from both ends: UDP, path MTU, DSCP
    and ECN of every class, loss, round-trip time, versions. With --switch: compare a switch's drops, marks and queues
    with the policy.

    With --framework: check the framework's version, that mlt's plugin for it imports, and its entry points; for NCCL,
    that the plugin's library loads.

    With --topology: read which GPUs and NICs share PCIe and NVLink, from this host or from FILE (the output of
    'nvidia-smi topo -m', or YAML), and say how to reduce among the GPUs, and to which (BytePS, section 4.2).

    With --recorder: print the failed call of each rank of a PyTorch job, and where the ranks' calls differ.

    Changes nothing, and needs no privilege. Exits with 1 if there is a problem; "optional" findings do not count.

    \b
    mlt doctor                    this host
    mlt doctor --fix              commands that fix the findings
    mlt doctor --framework torch  whether PyTorch will find the backend "mlt"
    mlt doctor --topology         the best GPU to reduce to
    mlt doctor --serve            on one host, then on another: mlt doctor HOST
    """
    host = None if topology else target
    if sum(one not in (None, False) for one in (host, serve, job, switch, framework, topology, recorder)) > 1:
        raise click.UsageError("give one of HOST, --serve, --job, --switch, --framework, --topology and --recorder")
    if framework is not None:
        _finish(_shown(frameworks.examine_framework(framework, os.environ), json, fix=fix))
    if not (target or serve or job or switch or topology or recorder):
        _finish(_shown(examine(), json, fix=fix))
    from mlt.diagnosis import command

    settings = command.Settings(
        port=port, interface=interface, policy=policy, timeout=connect_timeout, environ=os.environ
    )
    try:
        if topology:
            from mlt.diagnosis.host_topology import examine_topology

            _finish(_shown(examine_topology(target), json, fix=fix))
        if recorder is not None:
            from mlt.diagnosis.flight_records import examine_records

            _finish(_shown(examine_records(recorder), json, fix=fix))
        if switch is not None:
            from mlt.switch_push.doctor import examine_switch

            found = examine_switch(switch, system, policy, os.environ, inventory=inventory, known_hosts=known_hosts)
            _finish(_shown(found, json, fix=fix))
        if serve:
            command.serve(settings, once=once, say=_say)
        elif job:
            _finish(_shown(command.examine_job(settings, say=_say), json, fix=fix))
        else:
            assert target is not None
            _check_host(target)
            _finish(_shown(command.examine_host(target, settings), json, fix=fix))
    except (MltError, SwitchConfigError) as error:
        show_error(error)
        raise SystemExit(status_of(error)) from None
    except KeyboardInterrupt as error:
        raise SystemExit(interrupted(error)) from None


def _check_host(target: str) -> None:
    try:
        parse_target(target, DEFAULT_PORT)
    except ConfigError as error:
        raise ConfigError(f"HOST: {error}") from None


def _say(text: str) -> None:
    click.echo(f"mlt doctor: {shown(text)}", err=True)


def _shown(findings: Iterable[Finding], json: Path | None, *, fix: bool) -> list[Finding]:
    """Show each as soon as it is there; JSON whole at the end."""
    known = []
    for finding in findings:
        known.append(finding)
        if fix:
            _show_fix(finding, err=is_stdout(json))
            continue
        err, indent = is_stdout(json), " " * len(_MARKS["ok"])
        click.echo(wrapped(shown(finding.what), _MARKS[finding.level], indent), err=err)
        if finding.fix:
            # A command keeps its line: it is there to be copied.
            head = f"{indent}-> "
            advice = head + finding.fix if finding.fix_is_command else wrapped(finding.fix, head, " " * len(head))
            click.echo(advice, err=err)
    if json is not None:
        try:
            write_json(json, [asdict(finding) for finding in known])
        except WriteFailedError as error:
            show_error(error)
            raise SystemExit(status_of(error)) from None
    return known


def _show_fix(finding: Finding, *, err: bool) -> None:
    """A comment with the finding, then its command; advice that is no command stays a comment, and so does a command
    that fixes what few need: a shell that reads all lines would install every framework."""
    if finding.fix:
        click.echo(wrapped(f"{finding.level}: {shown(finding.what)}", "# ", "#   "), err=err)
        if not finding.fix_is_command:
            click.echo(wrapped(finding.fix, "#   ", "#   "), err=err)
        else:
            click.echo(finding.fix if finding.level == "problem" else f"#   {finding.fix}", err=err)


def _finish(findings: list[Finding]) -> NoReturn:
    raise SystemExit(1 if any(finding.level == "problem" for finding in findings) else 0)
