"""The command group ``mlt``: its help, its errors and its completion."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from mlt import __version__
from mlt.cli.delegate import Delegate
from mlt.cli.main import COMMANDS
from mlt.cli.style import App, AppGroup


class LazyGroup(AppGroup):
    """A group whose members are looked up in COMMANDS, so ``mlt --help`` imports none of them.

    Uses only typer's own classes: depending on typer's version, they derive from click's or from typer's copy of click.
    """

    def list_commands(self, ctx: Any) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        return Delegate(cmd_name, module=entry[0], short_help=entry[1])


app = App(cls=LazyGroup)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"mlt, version {__version__}")
        raise typer.Exit


@app.callback()
def _mlt(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """mlt: a bounded-loss UDP transport for distributed training.

    In PyTorch, change one word: torch.distributed.init_process_group("mlt").
    """
