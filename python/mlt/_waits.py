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
from mlt.job.rendezvous import Endpoint, ranks_text

if TYPE_CHECKING:
    from mlt.context import Context
    from mlt.operation import Operation

logger = logging.getLogger("mlt")

SHOWN = 4


idle: weakref.WeakSet[Operation] = weakref.WeakSet()  # those that may take hours by design
names: weakref.WeakKeyDictionary[Operation, str] = weakref.WeakKeyDictionary()  # of those whose tags say nothing
_reported: weakref.WeakSet[Operation] = weakref.WeakSet()


def on_quiet(op: Operation, seconds: int) -> None:
    """Called once for every second that a wait for ``op`` has lasted. One line for each operation, whoever waits."""
    if seconds != QUIET_SECONDS or op in idle or op in _reported:
        return
    _reported.add(op)
    context = op.context
    peers, cause = [op.peer], "did not post the other side of it yet"
    if op.peer < 0:
        # Of a collective those whose data is missing here; of a push-pull none is known.
        peers = context.engine.awaited_ranks(op.id)
        if peers:
            cause = f"did not call it yet, or {'waits' if len(peers) == 1 else 'wait'} for further ranks"
    who = f"{ranks_text(peers)} {'is' if len(peers) == 1 else 'are'}" if peers else "the other ranks are"
    everyone = [rank for rank in range(context.size) if rank != context.rank]
    _report(
        context,
        names.get(op, str(op).rstrip(",")),
        peers or everyone,
        f"{who} connected, but {cause}, or the network is slow",
    )


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
    """The known cause of a peer's trouble; empty if there is none."""
    if context.engine.has_peer_left(peer):
        return f"rank {peer} left the job"
    return context.engine.peer_failure(peer)


class ConnectWatch:
    """A context manager around the connections of a job's start: after ``QUIET_SECONDS`` it logs which are missing.

    ``table``: where every rank listens. Each came to the rendezvous, so a connection that is missing now is most likely
    blocked, unless it has arrived and is not up: then its process is stopped. The higher rank connects to the lower.
    """

    def __init__(self, context: Context, table: Iterable[Endpoint], timeout: float) -> None:
        self._context = context
        self._table = tuple(table)
        self._timeout = timeout
        self._timer = threading.Timer(QUIET_SECONDS, self._report)
        self._timer.daemon = True

    def __enter__(self) -> None:
        self._timer.start()

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()

    def _report(self) -> None:
        context, engine = self._context, self._context.engine
        own = next(one for one in self._table if one.rank == context.rank)
        # A rank that was connected and has left is not missing.
        missing = [
            one for one in self._table
            if one is not own and not engine.is_peer_up(one.rank) and not engine.peer_failure(one.rank)
        ]  # fmt: skip
        targets = [f"rank {one.rank} at {one.where}" for one in missing if one.rank < own.rank]
        clients = [f"rank {one.rank} ({one.host})" for one in missing if one.rank > own.rank]
        texts = []
        if targets:
            texts.append(f"its TCP connection to {_shown(targets)}")
        if clients:
            texts.append(f"the TCP connection of {_shown(clients)} to {own.where}")
        arrived = min(self._arrived(), len(clients))
        hints = []
        if arrived:
            hints.append(
                "TCP passes: a connection has arrived, but its rank does not complete it, whose process may be stopped "
                "(SIGSTOP, a debugger, a frozen container) or hang"
            )
        if targets or arrived < len(clients):
            ports = "this port" if len(targets) + bool(clients) == 1 else "these ports"
            hints.append(
                f"All ranks were there: let TCP pass to {ports} if a firewall blocks it; the system chooses such ports "
                "from net.ipv4.ip_local_port_range"
            )
        if texts:
            logger.warning(
                "rank %d: still waiting for %s (times out %g s after the start). %s",
                context.rank, ", and for ".join(texts), self._timeout, ". ".join(hints),
            )  # fmt: skip

    def _arrived(self) -> int:
        """TCP connections of ranks that arrived here and are not up."""
        context, engine = self._context, self._context.engine
        counts = engine.counters()
        known = [
            one for one in self._table
            if one.rank > context.rank and (engine.is_peer_up(one.rank) or engine.peer_failure(one.rank))
        ]  # fmt: skip
        unrelated = sum(counts[f"control_{name}"] for name in ("unidentified", "unproved", "other_version"))
        return max(counts["control_accepted"] - unrelated - len(known), 0)


def _shown(texts: list[str]) -> str:
    return ", ".join(texts[:SHOWN]) + (", ..." if len(texts) > SHOWN else "")


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
