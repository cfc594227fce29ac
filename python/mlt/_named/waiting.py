"""``WaitingThreads``: what the threads of a rank's program wait for, and whether one is left that could submit more.

A rank that waits is only stuck for sure if all threads of its program wait: any other may submit what the others need.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

Key = tuple[int, str]
"""Process set and name of an operation."""

_OWN: Final = "mlt-"
"""Prefix of the names of mlt's threads, which submit nothing."""
_lent = threading.local()


@contextmanager
def lent_thread() -> Iterator[None]:
    """While this thread is in the block, it works for another thread of the program, which waits for its return:
    as a framework's thread does that runs a graph."""
    before = getattr(_lent, "is_lent", False)
    _lent.is_lent = True
    try:
        yield
    finally:
        _lent.is_lent = before


class WaitingThreads:
    """Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waits: dict[int, tuple[Key, bool]] = {}  # by thread: for what, and whether it is lent

    @contextmanager
    def waiting(self, key: Key) -> Iterator[None]:
        """While this thread is in the block, it waits for an operation, and submits nothing."""
        thread = threading.get_ident()
        with self._lock:
            self._waits[thread] = key, getattr(_lent, "is_lent", False)
        try:
            yield
        finally:
            with self._lock:
                del self._waits[thread]

    def state(self) -> tuple[tuple[Key, ...], tuple[str, ...]]:
        """For which operations threads wait, and the names of the threads that could still submit others.

        All threads that run Python count, apart from mlt's and those that wait for a thread that they lent; of the
        latter one is known for sure, however many lent threads wait.
        """
        with self._lock:
            waits = dict(self._waits)
            threads = threading.enumerate()
            known = {thread.ident: thread.name for thread in threads}
            running = (sys._current_frames().keys() | known.keys()) - waits.keys()
            # A framework may also run a graph in the thread that calls it.
            pythons = {thread.ident for thread in threads if not isinstance(thread, threading._DummyThread)}
        others = [known.get(one, "a thread without a name") for one in running]
        others = sorted(name for name in others if not name.startswith(_OWN))
        if len(others) == 1 and any(is_lent and one not in pythons for one, (_, is_lent) in waits.items()):
            others = []
        return tuple(sorted({key for key, _ in waits.values()})), tuple(others)
