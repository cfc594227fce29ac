"""A typer command that passes its arguments to a sub-command in another module, imported when it runs.

Typer 0.26 and later contain their own copy of click. A click command inside a typer group (or the reverse) then parses
correctly, but its errors and its ``--help`` raise exceptions that the outer library does not know. With the bare
arguments, each library ends its own command, and the other module stays unloaded until then.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command


def group_app(cls: type[TyperGroup]) -> typer.Typer:
    """An app whose members ``cls`` looks up, as delegates.

    Tracebacks show no locals, in any of the apps: older typer does so by default, and the job secret is among them.
    Without rich's help pages: they would import every command to list it.
    """
    return typer.Typer(
        cls=cls,
        add_completion=False,
        pretty_exceptions_show_locals=False,
        no_args_is_help=True,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )


class Delegate(TyperCommand):
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
        target: Any = import_module(self.module).app
        command: Any = get_command(target) if isinstance(target, typer.Typer) else target
        return command.main(args=ctx.args, prog_name=ctx.command_path, standalone_mode=True)
