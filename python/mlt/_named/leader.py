"""``Leader``: rank 0's side of the controllers, around the coordinator."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from mlt._named.channel import Inbox, Outbox
from mlt._named.coordinator import Batch, Coordinator
from mlt._named.requests import Request
from mlt.errors import MltError

if TYPE_CHECKING:
    from mlt.context import Context

logger = logging.getLogger("mlt")

# While so many messages with work for rank 0 are not carried out, further answers wait, and are fused.
_AHEAD: Final = 2


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
        self._own: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._ahead = 0  # messages in the queue or being carried out
        self._ended = False
        self._outboxes: dict[int, Outbox] = {}
        if context is not None:
            self._outboxes = {rank: Outbox(context, rank) for rank in range(1, size)}
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

    def next_message(self) -> Any:
        """Batches for rank 0, or the text of the end; looks for names that are overdue while it waits."""
        limits = [one for one in (self._settings.stall_seconds, self._settings.stall_end_seconds) if one]
        every = min([*limits, 5.0]) if limits else None
        while True:
            try:
                return self._own.get(timeout=every)
            except queue.Empty:
                self._check_overdue()

    def carried_out(self) -> None:
        """Rank 0 has carried out a message."""
        with self._lock:
            self._ahead -= 1
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
        """Send what is ready, unless rank 0 is behind: then more can be fused."""
        if self._coordinator.has_ready and self._ahead < _AHEAD:
            self._flush()

    def _flush(self) -> None:
        by_ranks: dict[int, list[Batch]] = {}
        for batch in self._coordinator.take():
            for rank in batch.ranks:
                by_ranks.setdefault(rank, []).append(batch)
        for rank, batches in by_ranks.items():
            if rank == 0:
                self._ahead += 1
                self._own.put([list(one.answers) for one in batches])
            else:
                self._send(rank, [one.to_json() for one in batches])

    def _send(self, rank: int, message: Any) -> None:
        try:
            self._outboxes[rank].send(message)
        except MltError as error:
            # It would wait for ever, and the others for it.
            self._end(f"no message reaches rank {rank}: {error}")

    def _end(self, text: str) -> None:
        if self._ended:
            return
        self._ended = True
        for rank in self._outboxes:
            self._send(rank, text)
        self._own.put(text)
