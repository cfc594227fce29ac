"""``Leader``: rank 0's side of the controllers, around the coordinator."""

from __future__ import annotations

import logging
import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from mlt._named.channel import OVERTAKING_TAG, Inbox, Outbox
from mlt._named.coordinator import Batch, Coordinator
from mlt._named.requests import Request
from mlt.errors import MltError

if TYPE_CHECKING:
    from mlt.context import Context

logger = logging.getLogger("mlt")

# While so many messages of the first lane with work for rank 0 are not carried out, further answers wait, and are
# fused; in the second lane it is one message.
_AHEAD: Final = 2
ORDERED: Final = 0
"""The lane of messages that are carried out one after the other."""
OVERTAKING: Final = 1
"""The lane of reductions that are more urgent than those of the other lane that are not carried out."""


@dataclass(frozen=True)
class Settings:
    """``fusion_bytes``: limit of tensors reduced together. ``cache_capacity``: names. ``stall_seconds``: after which
    rank 0 warns of a name that some ranks wait for; 0: never. ``stall_end_seconds``: after which that name fails; 0:
    never."""

    fusion_bytes: int = 64 << 20
    cache_capacity: int = 16_384
    stall_seconds: float = 60.0
    stall_end_seconds: float = 0.0


class Leader:
    """The coordinator, the messages of the other ranks, and rank 0's own queue of answers. Thread-safe."""

    def __init__(self, context: Context | None, size: int, settings: Settings) -> None:
        self._settings = settings
        self._coordinator = Coordinator(size, fusion_bytes=settings.fusion_bytes, capacity=settings.cache_capacity)
        self._lock = threading.Lock()
        self._own: tuple[queue.SimpleQueue[Any], ...] = (queue.SimpleQueue(), queue.SimpleQueue())
        # By lane, of the messages in the queue or being carried out: the priority of their most urgent answer.
        self._ahead: tuple[deque[int], ...] = (deque(), deque())
        self._ended = False
        self._outboxes: dict[int, tuple[Outbox, Outbox]] = {}
        if context is not None:
            self._outboxes = {
                rank: (Outbox(context, rank), Outbox(context, rank, OVERTAKING_TAG)) for rank in range(1, size)
            }
            for rank in range(1, size):
                Inbox(context, rank).listen(self._receiver(rank), self._reporter(rank))

    def submit(self, rank: int, requests: Sequence[Request | int | str]) -> None:
        """Requests of a rank, or the text with which it ends the job."""
        with self._lock:
            if self._ended:
                return
            for request in requests:
                if isinstance(request, str):
                    self._flush()
                    self._end(request)
                    return
                if isinstance(request, Request) and request.kind == "missing":
                    self._send(rank, {"key": request.key, "missing": self._coordinator.missing(request)})
                elif isinstance(request, Request) and request.kind == "waits":
                    self._note_wait(rank, request)
                else:
                    self._coordinator.submit(rank, request)
            self._pump()

    def missing(self, question: Request) -> tuple[int, ...]:
        """``Coordinator.missing``, for rank 0."""
        with self._lock:
            return self._coordinator.missing(question)

    def next_message(self, lane: int) -> Any:
        """Batches for rank 0, or the text of the end; looks for names that are overdue while it waits."""
        limits = [one for one in (self._settings.stall_seconds, self._settings.stall_end_seconds) if one]
        every = min([*limits, 5.0]) if limits and lane == ORDERED else None
        while True:
            try:
                return self._own[lane].get(timeout=every)
            except queue.Empty:
                self._check_overdue()

    def carried_out(self, lane: int) -> None:
        """Rank 0 has carried out the lane's first message."""
        with self._lock:
            self._ahead[lane].popleft()
            self._pump()

    def end(self, text: str) -> None:
        """End the job: rank 0 failed."""
        with self._lock:
            self._end(text)

    def _receiver(self, rank: int) -> Callable[[Any], None]:
        def receive(message: Any) -> None:
            try:
                self.submit(rank, [Request.from_json(one) if isinstance(one, dict) else one for one in message])
            except Exception as error:
                logger.exception("rank 0: the requests of rank %d", rank)
                self.end(f"rank 0 failed at a request of rank {rank}: {error}")

        return receive

    def _reporter(self, rank: int) -> Callable[[MltError], None]:
        def report(error: MltError) -> None:
            with self._lock:
                self._end(f"rank {rank} is gone: {error}")

        return report

    def _note_wait(self, rank: int, report: Request) -> None:
        if not (self._settings.stall_seconds or self._settings.stall_end_seconds):
            return
        self._coordinator.note_wait(rank, report)
        if warning := self._coordinator.end_standstill():
            logger.warning("%s", warning)

    def _check_overdue(self) -> None:
        with self._lock:
            if self._settings.stall_seconds:
                for text in self._coordinator.overdue(self._settings.stall_seconds):
                    logger.warning("%s", text)
            if self._settings.stall_end_seconds:
                self._coordinator.fail_overdue(self._settings.stall_end_seconds)
            self._pump()

    def _pump(self) -> None:
        """Send what is ready, unless rank 0 is behind: then more can be fused. What is more urgent than all that rank 0
        has to carry out in order does not wait for that."""
        in_order, overtaking = self._ahead
        if in_order and not overtaking:
            self._distribute(self._coordinator.take_overtaking(max(in_order)), OVERTAKING)
        if len(in_order) < _AHEAD:
            # Once a reduction has ended on rank 0, every rank has taken part in it.
            ready = self._coordinator.take(max(in_order, default=None), fences=not overtaking)
            self._distribute(ready, ORDERED)

    def _flush(self) -> None:
        self._distribute(self._coordinator.take(), ORDERED)

    def _distribute(self, batches: Sequence[Batch], lane: int) -> None:
        by_ranks: dict[int, list[Batch]] = {}
        for batch in batches:
            for rank in batch.ranks:
                by_ranks.setdefault(rank, []).append(batch)
        for rank, own in by_ranks.items():
            if rank == 0:
                self._ahead[lane].append(max(one.priority for one in own))
                self._own[lane].put([list(one.answers) for one in own])
            else:
                self._send(rank, [one.to_json() for one in own], lane)

    def _send(self, rank: int, message: Any, lane: int = ORDERED) -> None:
        try:
            self._outboxes[rank][lane].send(message)
        except MltError as error:
            # It would wait for ever, and the others for it.
            self._end(f"no message reaches rank {rank}: {error}")

    def _end(self, text: str) -> None:
        if self._ended:
            return
        self._ended = True
        for lane in (OVERTAKING, ORDERED):
            for rank in self._outboxes:
                self._send(rank, text, lane)
            self._own[lane].put(text)
