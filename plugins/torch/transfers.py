"""Sends and receives of one process group, each a ``TransferWork``: whoever waits for one drives the transport."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from mlt.torch.exchange import as_bytes
from mlt.torch.work import future_pair, publish

import torch
import torch.distributed as dist
from mlt.errors import MltError, WaitTimeoutError

if TYPE_CHECKING:
    from mlt import Context, Operation

USER_TAGS: Final = 1 << 32
_SLICE: Final = timedelta(milliseconds=10)


class TransferWork(dist.Work):
    """A send or a receive in progress. ``wait`` raises RuntimeError with its name and the transport's error as cause.

    ``landed`` runs once after the transfer completed, before any waiter returns.
    """

    def __init__(
        self, operation: Operation | None, description: str, result: Any, landed: Callable[[], None] | None = None
    ) -> None:
        super().__init__()
        self._operation = operation
        self._description = description
        self._result = result
        self._landed = landed
        self._lock = threading.Lock()
        self._error: Exception | None = None

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        self._settle(timeout.total_seconds() if timeout > timedelta(0) else None)
        if self._error is not None:
            raise self._error from self._error.__cause__
        return True

    def is_completed(self) -> bool:
        operation = self._operation
        return operation is None or operation.done()

    def is_success(self) -> bool:
        return self._operation is None and self._error is None

    def exception(self) -> Any:
        return self._error

    def cancel(self) -> None:
        """Request cancellation; ``wait`` then ends soon."""
        operation = self._operation
        if operation is not None:
            with suppress(MltError):
                operation.cancel()

    def get_future(self) -> Any:
        source, future = future_pair()
        operation = self._operation

        def end(_: object = None) -> None:
            with suppress(RuntimeError):
                self._settle(None)
            publish(source, self._result, self._error)

        if operation is None:
            end()
        else:
            operation.add_done_callback(end)
        return future

    def _settle(self, seconds: float | None) -> None:
        """Wait for the operation once; whoever comes second finds its outcome."""
        with self._lock:
            if self._operation is None:
                return
            try:
                self._operation.wait(seconds)
            except WaitTimeoutError:
                raise RuntimeError(f"{self._description}: still in progress after {seconds:g} s (wait again)") from None
            except MltError as error:
                self._error = RuntimeError(f"{self._description}: {error}")
                self._error.__cause__ = error
            else:
                if self._landed is not None:
                    self._landed()
            self._operation = self._landed = None


class AnySourceWork(dist.Work):
    """A receive whose data lands in a buffer posted before its source was known; ``source_rank`` waits for it.

    ``choose`` waits up to its seconds and returns the group rank, its receive and the buffer. ``is_ready``: whether it
    would not wait.
    """

    def __init__(
        self,
        choose: Callable[[float | None], tuple[int, TransferWork, torch.Tensor]],
        is_ready: Callable[[], bool],
        tensor: torch.Tensor,
    ) -> None:
        super().__init__()
        self._choose = choose
        self._is_ready = is_ready
        self._tensor = tensor
        self._lock = threading.Lock()
        self._source: int | None = None

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        with self._lock:
            if self._source is None:
                source, work, landing = self._choose(timeout.total_seconds() if timeout > timedelta(0) else None)
                work.wait(timeout)
                with torch.no_grad():
                    self._tensor.copy_(landing.view(self._tensor.dtype).reshape(self._tensor.shape))
                self._source = source
        return True

    def is_completed(self) -> bool:
        return self._source is not None or self._is_ready()

    def is_success(self) -> bool:
        return self._source is not None

    def result(self) -> list[torch.Tensor]:
        self.wait()
        return [self._tensor]

    def source_rank(self) -> int:
        self.wait()
        assert self._source is not None
        return self._source

    _source_rank = source_rank


class Transfers:
    """Posts the sends and receives of one group. The n-th send of a tag to a rank matches the n-th receive there.

    ``ranks``: rank in the job by group rank. ``own``: this group rank. ``tag``: base to which a user's tag is added.

    A receive from any source is posted to every other rank, into a buffer for each; the first that completes is taken.
    The others stay posted: later receives of that tag, from any source or from their rank, take them first.
    """

    def __init__(self, context: Context, ranks: tuple[int, ...], *, own: int, tag: int, name: str) -> None:
        self._context = context
        self._ranks = ranks
        self._own = own
        self._tag = tag
        self._name = name
        self._in_progress: deque[TransferWork] = deque()
        self._standing: dict[int, dict[int, tuple[TransferWork, torch.Tensor]]] = {}  # by tag and group rank
        self._any_waiting: dict[int, int] = {}  # receives from any source that have not chosen one, by tag
        self._lock = threading.Lock()

    def send(self, tensor: torch.Tensor, peer: int, tag: int, seconds: float) -> TransferWork:
        """Start sending a tensor to group rank ``peer``."""
        data = as_bytes(tensor.detach().contiguous())
        operation = None
        if data.numel():
            operation = self._context.post_send(data, to=self._ranks[peer], tag=self._tag + tag, timeout=seconds)
        return self._follow(TransferWork(operation, self._describe(f"send to rank {peer}", tag), [tensor]))

    def recv(self, tensor: torch.Tensor, peer: int, tag: int, seconds: float) -> TransferWork | AnySourceWork:
        """Start receiving into a tensor from group rank ``peer``; a strided one is filled when the wait returns."""
        with self._lock:
            left = {} if self._any_waiting.get(tag) else self._standing.get(tag, {})
            work, landing = left.pop(peer, (None, tensor))
        if work is None:
            return self._follow(self._post_receive(tensor, peer, tag, seconds))
        self._check_size(tensor, landing, tag)
        return AnySourceWork(lambda _: (peer, work, landing), work.is_completed, tensor)

    def recv_any(self, tensor: torch.Tensor, tag: int, seconds: float) -> AnySourceWork:
        """Receive into a tensor from the first rank that sends; the work's ``source_rank`` is its group rank."""
        with self._lock:
            posted = self._stand(tensor, tag, seconds)
            self._any_waiting[tag] = self._any_waiting.get(tag, 0) + 1

        def is_ready() -> bool:
            return any(work.is_completed() for work, _ in tuple(posted.values()))

        def choose(limit: float | None) -> tuple[int, TransferWork, torch.Tensor]:
            """The first is waited for in slices, which drives all of them."""
            until = time.monotonic() + (seconds if limit is None else limit)
            while True:
                with self._lock:
                    self._stand(tensor, tag, seconds)
                    for peer, (work, landing) in posted.items():
                        if work.is_completed():
                            del posted[peer]
                            self._any_waiting[tag] -= 1
                            return peer, work, landing
                    some = next(iter(posted.values()))[0]
                if time.monotonic() > until:
                    raise RuntimeError(f"{self._describe('recv from any rank', tag)}: no rank sent in time")
                with suppress(RuntimeError):
                    some.wait(_SLICE)

        return AnySourceWork(choose, is_ready, tensor)

    def finish(self) -> None:
        """Wait for what was posted, and withdraw what receives from any source left posted."""
        for posted in self._standing.values():
            for work, _ in posted.values():
                work.cancel()
        while self._in_progress:
            with suppress(RuntimeError):
                self._in_progress.popleft().wait()

    def _stand(self, tensor: torch.Tensor, tag: int, seconds: float) -> dict[int, tuple[TransferWork, torch.Tensor]]:
        """The receives of ``tag`` that wait for any source, one for each other rank; requires the lock."""
        posted = self._standing.setdefault(tag, {})
        for _, landing in posted.values():
            self._check_size(tensor, landing, tag)
        for peer in range(len(self._ranks)):
            if peer != self._own and peer not in posted:
                landing = torch.empty(tensor.nbytes, dtype=torch.uint8)
                posted[peer] = (self._post_receive(landing, peer, tag, seconds), landing)
        return posted

    def _post_receive(self, tensor: torch.Tensor, peer: int, tag: int, seconds: float) -> TransferWork:
        landing = tensor if tensor.is_contiguous() else torch.empty_like(tensor, memory_format=torch.contiguous_format)
        operation = None
        if landing.numel():
            operation = self._context.post_recv(
                as_bytes(landing), 0.0, from_=self._ranks[peer], tag=self._tag + tag, timeout=seconds
            )

        def landed() -> None:
            if landing is not tensor:
                with torch.no_grad():
                    tensor.copy_(landing)

        return TransferWork(operation, self._describe(f"recv from rank {peer}", tag), [tensor], landed)

    def _follow(self, work: TransferWork) -> TransferWork:
        """Keep a work until it completes: one that its caller drops still gives its tensor back."""
        while self._in_progress and self._in_progress[0].is_completed():
            with suppress(RuntimeError):
                self._in_progress.popleft().wait()
        self._in_progress.append(work)
        return work

    def _check_size(self, tensor: torch.Tensor, landing: torch.Tensor, tag: int) -> None:
        if tensor.nbytes != landing.nbytes:
            raise ValueError(
                f"{self._describe('recv', tag)}: an earlier receive from any source posted {landing.nbytes} bytes for "
                f"each rank, this one has {tensor.nbytes}; give messages of different sizes different tags"
            )

    def _describe(self, what: str, tag: int) -> str:
        return f"mlt {what}, tag {tag} (group {self._name!r}, rank {self._own})"
