"""Commands and groups of click's in the style of all others."""

from __future__ import annotations

from typing import Any

import click

from mlt.cli.help_text import HelpMixin
from mlt.cli.style import CONTEXT


def _with_short_help(more: dict[str, Any]) -> dict[str, Any]:
    return {**more, "context_settings": {**CONTEXT, **(more.get("context_settings") or {})}}


class Command(HelpMixin, click.Command):
    """A command of click's, with ``-h`` wherever it is called from."""

    def __init__(self, name: str | None = None, **more: Any) -> None:
        super().__init__(name, **_with_short_help(more))


class Group(HelpMixin, click.Group):
    """A group of click's; its members have the same style."""

    command_class = Command
    group_class = type

    def __init__(self, name: str | None = None, **more: Any) -> None:
        super().__init__(name, **_with_short_help(more))
