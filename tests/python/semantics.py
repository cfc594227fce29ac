"""Tables of semantics of Horovod's API: checks that every rank of one job runs, one table in each program file; and
what these programs share."""

from __future__ import annotations

import json
import os
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
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


def step_until_rank_1_fails(step: Callable[[], object], *, rank: int, how: str) -> None:
    """Steps without end; rank 1 fails after two of them: by an error (``how`` is "raise"), or the test kills it."""
    for _ in range(2):
        step()
    if rank == 1:
        if how == "raise":
            raise ArithmeticError("of the program")
        print("kill me", flush=True)
        time.sleep(60)
    while True:
        step()


def operations_of(api: Any, step: Callable[[], object]) -> list[str]:
    """The names of the operations that this rank carries out in ``step``, sorted; from the timeline of ``api``."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "timeline.json"
        api.start_timeline(str(path))
        step()
        api.stop_timeline()
        events = json.loads(path.read_text())
    return sorted({one["args"]["name"] for one in events if one["name"] == "process_name"})


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
