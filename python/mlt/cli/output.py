"""Tables for people, by rich, which only the commands that print them import."""

from __future__ import annotations

from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.measure import Measurement

_UNBOUNDED = 10_000


class Output(Console):
    """A console that leaves a closed pipe to ``run``, and prints square brackets as they are."""

    def __init__(self, **more: Any) -> None:
        super().__init__(markup=False, **more)

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError

    def print_table(self, table: Any) -> None:
        """Print a table, or a group of them, with whole words: wider than a terminal that is too narrow for them."""
        for one in getattr(table, "renderables", [table]):
            for column in one.columns:
                words = [word for cell in (column.header, *column.cells) for word in str(cell).split()]
                column.min_width = max(map(cell_len, words), default=0)
            needed = Measurement.get(self, self.options.update(width=_UNBOUNDED), one).minimum
            self.width = max(self.width, needed)
        self.print(table, crop=False)
