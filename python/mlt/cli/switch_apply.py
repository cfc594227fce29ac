"""``mlt switch apply``: apply a policy to a device, with an undo."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from mlt.cli.click_style import Command
from mlt.cli.ending import interrupted
from mlt.cli.style import show_error, status_of
from mlt.cli.switch_options import POLICY, PORTS, TARGET, ports_of
from mlt.cli.unit_option import TIME, UnitOption
from mlt.switch_configs.errors import SwitchConfigError
from mlt.switch_configs.generator import Generated, generate
from mlt.switch_configs.policy import load as load_policy


@click.command(cls=Command)
@POLICY
@click.argument("host", metavar="SWITCH")
@TARGET
@PORTS
@click.option("--dry-run", is_flag=True, help="Show the changes without applying them.")
@click.option(
    "--confirm",
    metavar="TIME",
    type=UnitOption(TIME, above=0),
    help="Undo after TIME (90s, 5m) unless confirmed.",
)
@click.option("--keep-if", metavar="COMMAND", help="Shell command that confirms by exit status 0, with --confirm.")
@click.option("--undo", is_flag=True, help="Undo the latest apply and restore the previous configuration.")
@click.option("--inventory", type=click.Path(path_type=Path), help="Inventory: Ansible's YAML or nornir's hosts file.")
@click.option("--known-hosts", type=click.Path(path_type=Path), help="File of further SSH host keys.")
def apply(
    policy: Path,
    host: str,
    target: str,
    ports: str | None,
    dry_run: bool,
    confirm: float | None,
    keep_if: str | None,
    undo: bool,
    inventory: Path | None,
    known_hosts: Path | None,
) -> None:
    """Apply a policy to SWITCH and, with --confirm, undo it unless it is confirmed.

    SWITCH is testbed:NAME (a testbed's switches), local, netns:NAME, or [USER@]HOST[:PORT]. The login comes from
    MLT_SWITCH_USER, MLT_SWITCH_PASSWORD or MLT_SWITCH_KEY, or from --inventory; nothing of it is written.

    With --confirm, "yes" on standard input confirms, or --keep-if. Exits with 1 if it was reverted. No vendor's
    device took part in our tests: try it on one port first. More: docs/switch.md.
    """
    from mlt.switch_push.device import PushError
    from mlt.switch_push.hosts import open_device

    try:
        wanted = load_policy(policy)
        device = open_device(host, target, inventory=inventory, known_hosts=known_hosts)
        try:
            asked = None if ports is None else ports_of(ports)
            text = device.running()
            generated = generate(wanted, device.target(target), ports=asked, running=text)
            if dry_run:
                click.echo(device.preview(generated))
            elif undo:
                device.undo(generated)
                click.echo(f"{device.title}: reverted", err=True)
            else:
                raise SystemExit(_push(device, generated, confirm, keep_if))
        finally:
            device.close()
    except BrokenPipeError:
        raise
    except (PushError, SwitchConfigError, ValueError, OSError) as error:
        show_error(error)
        raise SystemExit(status_of(error)) from error
    except KeyboardInterrupt as error:
        click.echo("mlt switch: interrupted: reverted", err=True)
        raise SystemExit(interrupted(error)) from None


def _push(device: object, generated: Generated, confirm: float | None, keep_if: str | None) -> int:
    from mlt.switch_push import session
    from mlt.switch_push.device import Device

    assert isinstance(device, Device)
    kept = session.push(
        device,
        generated,
        confirm=confirm,
        keep=session.asked_at_terminal if keep_if is None else session.command_says(keep_if),
        say=lambda text: click.echo(text, err=True),
    )
    click.echo(f"{device.title}: {'in force' if kept else 'not confirmed: reverted'}", err=True)
    sys.stderr.flush()
    return 0 if kept else 1
