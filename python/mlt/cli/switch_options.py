"""Options and arguments that several commands of ``mlt switch`` have."""

from __future__ import annotations

from pathlib import Path

import click

from mlt.switch_configs.policy import expand_ports

PORTS_HELP = "Ports: comma-separated numbers, ranges or the device's names."

POLICY = click.argument("policy", type=click.Path(path_type=Path), metavar="POLICY")
TARGET = click.option(
    "--target", "-t", metavar="SYSTEM", required=True, help="Switch system; 'mlt switch targets' lists them."
)
PORTS = click.option("--ports", metavar="PORTS", help=PORTS_HELP, show_default="the policy's")


def ports_of(text: str) -> tuple[str, ...]:
    """The ports that ``--ports`` names. Raises ValueError that names the option."""
    try:
        return expand_ports(tuple(text.split(",")))
    except ValueError as error:
        raise ValueError(f"--ports {text}: {error}") from None
