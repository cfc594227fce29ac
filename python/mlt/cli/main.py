"""Entry point of ``mlt``. A sub-command's module is imported only when that command runs or shows its help."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any

import typer
from typer.main import get_command

from mlt import __version__
from mlt.cli import completion
from mlt.cli.delegate import Delegate
from mlt.cli.help_text import paragraph, rows
from mlt.cli.style import App, AppGroup, open_streams, run

# Command -> (module with an ``app: typer.Typer``, one-line help)
COMMANDS: dict[str, tuple[str, str]] = {
    "demo": ("mlt.cli.demo", "Train a small model with and without packet loss, and compare the results"),
    "launch": ("mlt.cli.launch", "Run a program as all ranks of a job on this host"),
    "serve": ("mlt.cli.serve", "Run a summation service until every worker has left"),
    "perf": ("mlt.cli.perf", "Measure goodput and latency of mlt and other transports in one run"),
    "plan": ("mlt.cli.plan", "Plan placement, aggregation and routes from one cluster file"),
    "doctor": ("mlt.cli.doctor", "Check this host, the path to another host, or a switch"),
    "completion": ("mlt.cli.completion", "Print a shell's completion of commands and options"),
    "testbed": ("mlt.cli.testbed", "Emulate hosts and an impaired network on this host"),
    "switch": ("mlt.cli.switch", "Generate, apply and verify switch QoS configurations from one policy file"),
}


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


app = App(cls=LazyGroup, invoke_without_command=True)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"mlt, version {__version__}")
        raise typer.Exit


# Shown by ``mlt`` alone: command, what it does.
FIRST_STEPS = (
    ("mlt doctor", "Check this host, in two seconds"),
    ("mlt perf --local", "Measure mlt between two processes of this host"),
    ("mlt launch -n 2 python train.py", "Run a program as a job of two ranks on this host"),
    ("mlt testbed run --hosts 2 --loss 1% -- python train.py", "Run it over an emulated network with loss"),
    ("mlt demo", "Train a model with and without packet loss; needs the extra demo"),
)


@app.callback()
def _mlt(
    ctx: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """mlt: a bounded-loss UDP transport for distributed training.

    In PyTorch, change one word: torch.distributed.init_process_group("mlt").
    """
    if ctx.invoked_subcommand is None:
        typer.echo(rows("What to try first", FIRST_STEPS))
        more = "All commands: mlt -h. Their options: mlt COMMAND -h. Completion of both: mlt completion -h."
        typer.echo(f"\n{paragraph(more, indent=0)}")


def main() -> None:
    """Entry point of the ``mlt`` script."""
    open_streams()
    words = os.environ.get(completion.VARIABLE)
    if words is not None:
        completion.answer(get_command(app), words)
        return
    run(get_command(app), sys.argv[1:], "mlt")


if __name__ == "__main__":
    main()
