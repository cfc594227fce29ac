"""When a wait says in the log what it waits for: every wait of mlt after ``QUIET_SECONDS``."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from mlt._shared.background import beside

QUIET_SECONDS = 5  # whole: some waits count seconds
REPEAT_SECONDS = 60

logger = logging.getLogger("mlt")


class Patience:
    """Reports what a rank waits for: after ``QUIET_SECONDS``, and again after each ``REPEAT_SECONDS``; with
    ``changes``, also when there is something new to tell."""

    def __init__(self, *, changes: bool = False) -> None:
        self._changes = changes
        self._due = time.monotonic() + QUIET_SECONDS
        self._repeat = 0.0
        self._told = ""

    @property
    def left(self) -> float:
        """Seconds until the next report may be due."""
        return max(self._due - time.monotonic(), 0.0)

    def hasten(self) -> None:
        """There is something to tell now: the next report is due."""
        self._due = time.monotonic()

    def ask(self, text: Callable[[], str]) -> None:
        now = time.monotonic()
        if now < self._due:
            return
        words = text()
        if now >= self._repeat or (self._changes and words != self._told):
            logger.warning("%s", words)
            self._told, self._repeat = words, now + REPEAT_SECONDS
        self._due = now + QUIET_SECONDS


@contextmanager
def speaking(text: Callable[[], str]) -> Iterator[None]:
    """Around a wait that has no loop: another thread reports what ``text`` says, as ``Patience`` does."""
    patience = Patience()

    def run(is_over: threading.Event) -> None:
        while not is_over.wait(patience.left):
            patience.ask(text)

    with beside(run, "mlt-patience"):
        yield
