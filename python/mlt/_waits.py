"""Waits of several seconds: one line in the log that names the operation, the rank, and the cause as far as known."""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING

from mlt._shared.patience import QUIET_SECONDS as QUIET_SECONDS
from mlt.job.rendezvous import ranks_text

if TYPE_CHECKING:
    from mlt.context import Context
    from mlt.operation import Operation

logger = logging.getLogger("mlt")

SHOWN = 4


idle: weakref.WeakSet[Operation] = weakref.WeakSet()  # those that may take hours by design


def on_quiet(op: Operation, seconds: int) -> None:
    """Called once for every second that a wait for ``op`` has lasted."""
    if seconds != QUIET_SECONDS or op in idle:
        return
    context = op.context
    peers, cause = [op.peer], "did not post the other side of it yet"
    if op.peer < 0:
        # Of a collective those whose data is missing here; of a push-pull none is known.
        peers = context.engine.awaited_ranks(op.id)
        if peers:
            cause = "did not call it yet, or wait for others in turn"
    who = f"{ranks_text(peers)} {'is' if len(peers) == 1 else 'are'}" if peers else "the other ranks are"
    everyone = [rank for rank in range(context.size) if rank != context.rank]
    _report(context, str(op).rstrip(","), peers or everyone, f"{who} connected, but {cause}, or the network is slow")


def _report(context: Context, what: str, peers: Iterable[int], otherwise: str) -> None:
    causes = [text for rank in peers if (text := _cause(context, rank))]
    logger.warning(
        "rank %d: still waiting for the %s after %d s: %s",
        context.rank,
        what,
        QUIET_SECONDS,
        "; ".join(causes[:SHOWN]) or otherwise,
    )


class WaitWatch:
    """One wait that is not for a single operation, from its construction on: ``look`` logs the line once it is due.

    ``what`` comes after "still waiting for the"; ``peers``: ranks that may be the cause.
    """

    def __init__(self, context: Context, what: str, peers: Iterable[int]) -> None:
        self._context = context
        self._what = what
        self._peers = tuple(peers)
        self._due = time.monotonic() + QUIET_SECONDS
        self._is_done = False

    @property
    def left(self) -> float:
        """Seconds until the line is due, 0 if it is overdue."""
        return max(self._due - time.monotonic(), 0.0)

    def look(self, otherwise: str) -> None:
        """Log the line if it is due; ``otherwise``: the cause if no peer left or failed."""
        if not self._is_done and time.monotonic() >= self._due:
            self._is_done = True
            _report(self._context, self._what, self._peers, otherwise)


def _cause(context: Context, peer: int) -> str:
    """What is wrong with a peer; empty if nothing is known."""
    if context.engine.is_peer_up(peer):
        return ""
    return context.engine.peer_failure(peer) or f"rank {peer} left the job"


class ConnectWatch:
    """A context manager around the connections of a job's start: after ``QUIET_SECONDS`` it logs which are missing."""

    def __init__(self, context: Context, peers: dict[int, str], timeout: float) -> None:
        self._context = context
        self._peers = peers
        self._timeout = timeout
        self._timer = threading.Timer(QUIET_SECONDS, self._report)
        self._timer.daemon = True

    def __enter__(self) -> None:
        self._timer.start()

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()

    def _report(self) -> None:
        engine = self._context.engine
        missing = [f"{rank} ({where})" for rank, where in self._peers.items() if not engine.is_peer_up(rank)]
        if missing:
            logger.warning(
                "rank %d: still waiting for a connection with rank %s (gives up %g s after the start); check that TCP "
                "passes between the hosts", self._context.rank, ", ".join(missing[:SHOWN]), self._timeout,
            )  # fmt: skip


class SlowOperations:
    """Operations that callers need without a thread in ``wait``, oldest first. A thread that ends when none is left
    reports those that are in progress after ``QUIET_SECONDS``."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: deque[tuple[float, weakref.ref[Operation]]] = deque()
        self._is_running = False

    def add(self, op: Operation) -> None:
        """Report ``op`` if it takes long."""
        with self._lock:
            self._entries.append((time.monotonic() + QUIET_SECONDS, weakref.ref(op)))
            start, self._is_running = not self._is_running, True
        if start:
            threading.Thread(target=self._run, name="mlt-slow-operations", daemon=True).start()

    def _run(self) -> None:
        # All that ended meanwhile go in one turn: it runs once in QUIET_SECONDS, however many operations come.
        while (delay := self._turn()) is not None:
            time.sleep(delay)

    def _turn(self) -> float | None:
        """Seconds until the next turn; None: the thread ends."""
        while True:
            with self._lock:
                if not self._entries:
                    self._is_running = False
                    return None
                due, reference = self._entries[0]
            op = reference()
            if op is not None and not op.done():
                if (left := due - time.monotonic()) > 0:
                    return left
                op.on_quiet(QUIET_SECONDS)
            with self._lock:
                self._entries.popleft()


slow_operations = SlowOperations()


def _forget_slow_operations() -> None:
    global slow_operations
    slow_operations = SlowOperations()  # their thread did not survive the fork


os.register_at_fork(after_in_child=_forget_slow_operations)
