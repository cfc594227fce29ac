"""A barrier that names the ranks that did not come."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import torch
from mlt.errors import MltError

if TYPE_CHECKING:
    from mlt import Context

_TAGS: Final = 256  # used in turn


class MonitoredBarrier:
    """The monitored barriers of one group, which all ranks call equally often: after a failure they no longer match.

    ``ranks``: rank in the job by group rank. ``own``: this group rank. ``tag``: the first of 256 tags. ``started``:
    gets each operation.
    """

    def __init__(
        self,
        context: Context,
        ranks: tuple[int, ...],
        *,
        own: int,
        tag: int,
        started: Callable[[Any], None] = lambda _: None,
    ) -> None:
        self._started = started
        self._context = context
        self._ranks = ranks
        self._own = own
        self._tag = tag
        self._calls = 0

    def wait(self, limit: timedelta, *, name_all: bool) -> None:
        """Group rank 0 waits for a byte of each rank, the others for its answer.

        Raises RuntimeError after ``limit``: on rank 0 with the first missing rank, or all of them (``name_all``).
        """
        tag = self._tag + self._calls % _TAGS
        self._calls += 1
        milliseconds = round(limit.total_seconds() * 1e3)
        deadline = time.monotonic() + limit.total_seconds()
        if self._own != 0:
            sent = self._send([0], tag, deadline)
            answered = not self._missing([0], tag, deadline, first_only=True)
            self._end(sent)
            if not answered:
                raise RuntimeError(
                    f"Rank {self._own} timed out in monitoredBarrier after {milliseconds} ms: rank 0 did not reply; "
                    "its error names the rank that did not come"
                )
            return
        others = range(1, len(self._ranks))
        if limit <= timedelta(0) and others:
            raise RuntimeError(f"Rank 0 timed out in monitoredBarrier after {milliseconds} ms")
        missing = self._missing(others, tag, deadline, first_only=not name_all)
        if missing:
            which = f"Rank {missing[0]}" if len(missing) == 1 else "Ranks " + ", ".join(map(str, missing))
            raise RuntimeError(f"[Rank 0]: {which} failed to pass monitoredBarrier in {milliseconds} ms")
        self._end(self._send(others, tag, deadline))

    def _send(self, peers: Sequence[int], tag: int, deadline: float) -> list[Any]:
        token = torch.zeros(1, dtype=torch.uint8)
        return [
            self._context.post_send(token, to=self._ranks[peer], tag=tag, timeout=_left(deadline)) for peer in peers
        ]

    def _missing(self, peers: Sequence[int], tag: int, deadline: float, *, first_only: bool) -> list[int]:
        """The peers that sent nothing in time; the first of them, or all."""
        posted = {
            peer: self._context.post_recv(
                torch.zeros(1, dtype=torch.uint8), 0.0, from_=self._ranks[peer], tag=tag, timeout=_left(deadline)
            )
            for peer in peers
        }
        for receive in posted.values():
            self._started(receive)
        missing: list[int] = []
        for peer, receive in posted.items():
            if missing and first_only:
                receive.cancel()
            try:
                receive.wait()
            except MltError:
                missing.append(peer)
        return missing[:1] if first_only else missing

    def _end(self, operations: Sequence[Any]) -> None:
        for operation in operations:
            with suppress(MltError):
                operation.wait()


def _left(deadline: float) -> float:
    return max(deadline - time.monotonic(), 1e-3)
