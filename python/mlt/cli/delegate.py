"""A click command that hands its arguments to a sub-command living in another module, imported when it runs.

Typer from 0.26 on carries its own copy of click: a typer command inside a click group then parses well, but its errors
and its ``--help`` leave as exceptions that click does not know. Handing over the bare arguments lets each library end
its own command.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import click
import typer


class Delegate(click.Command):
    """Runs ``app`` (a click command or a ``typer.Typer``) of ``module`` with whatever follows on the command line."""

    def __init__(self, name: str, *, module: str, short_help: str) -> None:
        super().__init__(name, help=short_help, short_help=short_help, add_help_option=False)
        self.module = module

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Take everything as it is, options and ``--help`` too."""
        ctx.args = list(args)
        return ctx.args

    def invoke(self, ctx: click.Context) -> Any:
        """Run the other command to its end, exit status included."""
        target = import_module(self.module).app
        command: Any = typer.main.get_command(target) if isinstance(target, typer.Typer) else target
        return command.main(args=ctx.args, prog_name=ctx.command_path, standalone_mode=True)
