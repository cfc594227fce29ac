"""Every command of ``mlt``, for tests that hold for all."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from typer.main import get_command

from mlt.cli.root import app


def commands(command: Any, ctx: Any, path: str = "") -> Iterator[tuple[Any, Any]]:
    """Every command below ``command``, with a context whose ``obj`` is its path; those of other modules imported."""
    if hasattr(command, "target"):
        command = command.target()
        ctx = command.context_class(command, info_name=ctx.info_name, **command.context_settings)
    ctx.obj = path
    yield command, ctx
    if hasattr(command, "list_commands"):
        for name in command.list_commands(ctx):
            member = command.get_command(ctx, name)
            context = member.context_class
            # Each library's contexts have parents of its own.
            parent = None if hasattr(member, "target") else ctx
            yield from commands(member, context(member, info_name=name, parent=parent), f"{path} {name}".strip())


def all_commands() -> list[tuple[Any, Any]]:
    command: Any = get_command(app)
    return list(commands(command, command.context_class(command, info_name="mlt", **command.context_settings)))
