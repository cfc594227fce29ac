"""Entry point of ``mlt``. A sub-command's module is imported only when that command runs or shows its help."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import click
import typer

# command -> (module with a ``command: click.Command`` or ``app: typer.Typer``, one-line help)
COMMANDS: dict[str, tuple[str, str]] = {
    "switch": ("mlt.cli.switch", "QoS configurations for switches, from one policy file"),
}


class LazyGroup(click.Group):
    """A click group whose members are looked up in COMMANDS, so ``mlt --help`` imports none of them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        module: Any = import_module(entry[0])
        command: click.Command = (
            typer.main.get_command(module.app) if isinstance(module.app, typer.Typer) else module.app
        )
        command.name = cmd_name
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in sorted(COMMANDS.items())])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="mlt")
def main() -> None:
    """mlt: a network transport that knows it carries gradients."""


if __name__ == "__main__":
    main()
