"""Entry point of ``mlt``. A sub-command's module is imported only when that command runs or shows its help."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from mlt import __version__
from mlt.cli.delegate import Delegate, group_app

# Command -> (module with an ``app: typer.Typer``, one-line help)
COMMANDS: dict[str, tuple[str, str]] = {
    "demo": ("mlt.cli.demo", "train a small model with and without packet loss, and compare the results"),
    "launch": ("mlt.cli.launch", "run a program as all ranks of a job on this host"),
    "serve": ("mlt.cli.serve", "run a summation service until every worker has left"),
    "perf": ("mlt.cli.perf", "measure goodput and latency of mlt and other transports in one run"),
    "plan": ("mlt.cli.plan", "plan placement, aggregation and routes from one cluster file"),
    "doctor": ("mlt.cli.doctor", "check this host, the path to another host, or a switch"),
    "testbed": ("mlt.cli.testbed", "emulate hosts and an impaired network on this host"),
    "switch": ("mlt.cli.switch", "generate, apply and verify switch QoS configurations from one policy file"),
}


class LazyGroup(TyperGroup):
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

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in sorted(COMMANDS.items())])


app = group_app(LazyGroup)


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
    """mlt: a bounded-loss UDP transport for distributed training."""


def main() -> None:
    """Entry point of the ``mlt`` script."""
    app(prog_name="mlt")


if __name__ == "__main__":
    main()
