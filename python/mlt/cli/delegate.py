"""A typer command that passes its arguments to a sub-command in another module, imported when it runs.

Typer 0.26 and later contain their own copy of click. A click command inside a typer group (or the reverse) then parses
correctly, but its errors and its ``--help`` raise exceptions that the outer library does not know. With the bare
arguments, each library parses its own command, and the other module stays unloaded until then.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import typer
from typer.main import get_command

from mlt.cli.style import AppCommand, run


class Delegate(AppCommand):
    """Runs ``app`` (a ``typer.Typer`` or a click command) of ``module`` with the remaining arguments."""

    def __init__(self, name: str, *, module: str, short_help: str) -> None:
        super().__init__(name, help=short_help, short_help=short_help, add_help_option=False)
        self.module = module

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Accept all arguments unchanged, including options and ``--help``."""
        ctx.args = list(args)
        return list(args)

    def invoke(self, ctx: Any) -> Any:
        """Run the other command to its end, with its exit status."""
        run(self.target(), ctx.args, ctx.command_path)

    def target(self) -> Any:
        """The other module's command, which this imports."""
        return imported(self.module)


def imported(module: str) -> Any:
    """The command ``app`` (a ``typer.Typer`` or a click command) of a module."""
    found: Any = import_module(module).app
    return get_command(found) if isinstance(found, typer.Typer) else found
