"""A typer command that hands its arguments to a sub-command living in another module, imported when it runs.

Typer from 0.26 on carries its own copy of click, so a click command inside a typer group (or the reverse) parses well,
but its errors and its ``--help`` leave as exceptions that the outer library does not know. Handing over the bare
arguments lets each library end its own command, and keeps the other module unloaded until then.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand
from typer.main import get_command


class Delegate(TyperCommand):
    """Runs ``app`` (a ``typer.Typer`` or a click command) of ``module`` with whatever follows on the command line."""

    def __init__(self, name: str, *, module: str, short_help: str) -> None:
        super().__init__(name, help=short_help, short_help=short_help, add_help_option=False)
        self.module = module

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Take everything as it is, options and ``--help`` too."""
        ctx.args = list(args)
        return list(args)

    def invoke(self, ctx: Any) -> Any:
        """Run the other command to its end, exit status included."""
        target: Any = import_module(self.module).app
        command: Any = get_command(target) if isinstance(target, typer.Typer) else target
        return command.main(args=ctx.args, prog_name=ctx.command_path, standalone_mode=True)
