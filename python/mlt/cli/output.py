"""Tables for people, by rich, which only the commands that print them import."""

from __future__ import annotations

import re
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.measure import Measurement

from mlt.cli.layout import lines, tied, untied

_UNBOUNDED = 10_000
# Of a table that goes into a file or a pipe.
TABLE_WIDTH = 120


class Output(Console):
    """A console that leaves a closed pipe to ``run``, and prints square brackets as they are."""

    def __init__(self, **more: Any) -> None:
        super().__init__(markup=False, **more)

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError

    def print_text(self, text: str) -> None:
        """Print sentences as ``layout.print_lines`` does."""
        self.print(lines(text), highlight=False, soft_wrap=True)

    def print_table(self, table: Any) -> None:
        """Print a table, or a group of them, with whole words: wider than a terminal that is too narrow for them.

        A number stays in one line with its unit.
        """
        for one in getattr(table, "renderables", [table]):
            one.title, one.caption = _tied(one.title), _tied(one.caption)
            for column in one.columns:
                column.header, column._cells = _tied(column.header), [_tied(cell) for cell in column.cells]
                words = [word for cell in (column.header, *column.cells) for word in str(cell).split()]
                column.min_width = max(map(cell_len, words), default=0)
            needed = Measurement.get(self, self.options.update(width=_UNBOUNDED), one).minimum
            self.width = max(self.width, needed)
        with self.capture() as captured:
            self.print(table, crop=False)
        # A box without a top has a blank line there; a title has its own line.
        self.file.write(re.sub(r"\A[ \t]*\n", "", untied(captured.get())))
        self.file.flush()


def _tied(cell: Any) -> Any:
    return tied(cell) if isinstance(cell, str) else cell
