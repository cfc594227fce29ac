"""Tables of semantics of Horovod's API: checks that every rank of one job runs, one table in each program file."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from checks import assert_names


@contextmanager
def fails(kind: type[BaseException] | tuple[type[BaseException], ...], *facts: str) -> Iterator[None]:
    """An error of this kind with these facts in its text."""
    caught: BaseException | None = None
    try:
        yield
    except kind as error:
        caught = error
    assert caught is not None, f"no {kind}"
    if facts:
        assert_names(caught, *facts)


class Checks(dict[str, Callable[[], None]]):
    """The rows of one program file's table, by name."""

    def add(self, check: Callable[[], None]) -> Callable[[], None]:
        """A decorator: every rank runs this function."""
        self[check.__name__] = check
        return check

    def failures(self, names: Sequence[str], after_each: Callable[[], None] = lambda: None) -> dict[str, str]:
        """Run these checks on this rank: name -> the traceback of its failure, or an empty text."""
        found = {}
        for name in names:
            try:
                self[name]()
                found[name] = ""
            except Exception:
                found[name] = f"rank {os.environ['RANK']}:\n{traceback.format_exc()}"
            after_each()
        return found

    def in_job(self, api: Any, names: Sequence[str], after_each: Callable[[], None] = lambda: None) -> dict[str, str]:
        """``failures`` between ``init`` and ``shutdown`` of a module with Horovod's or BytePS's API."""
        api.init()
        found = self.failures(names, after_each)
        api.shutdown()
        return found
