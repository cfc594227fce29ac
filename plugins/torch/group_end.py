"""Waiting of a process group that ends, for its calls in progress."""

from __future__ import annotations

import time
import weakref
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from mlt import Context

QUIET_SECONDS: Final = 3.0
MAX_SECONDS: Final = 30.0
# Groups that end this soon after one whose calls did not end are of the same ``destroy_process_group()``.
_TOGETHER_SECONDS: Final = 1.0

_ended_early: weakref.WeakKeyDictionary[Context, float] = weakref.WeakKeyDictionary()


class Grace:
    """The time that calls in progress have, from its construction on: until no data has moved for 3 s, and 30 s at
    most. Nothing for the further groups that one ``destroy_process_group()`` ends, if the first had calls left."""

    def __init__(self, context: Context) -> None:
        now = time.monotonic()
        self._context = context
        self._moved = self._moves()
        self._until = now + QUIET_SECONDS
        self._last = now + MAX_SECONDS
        if now - _ended_early.get(context, float("-inf")) < _TOGETHER_SECONDS:
            self._last = now

    def left(self) -> float:
        """Seconds, 0 when it is over."""
        now, moved = time.monotonic(), self._moves()
        if moved != self._moved:
            self._moved, self._until = moved, now + QUIET_SECONDS
        return max(min(self._until, self._last) - now, 0.0)

    def end_early(self) -> None:
        """Calls were left when it was over."""
        _ended_early[self._context] = time.monotonic()

    def _moves(self) -> int:
        """Segments that arrived, and that were sent for the first time."""
        if self._context.closed:
            return 0
        counters = self._context.counters()
        return counters["segments_placed"] + counters["data_packets_sent"] - counters["segments_repaired"]
