"""``TransferWork``, torch.distributed's Work of operations of the transport. The waiting thread drives it.

``Transfers``: the sends and receives of one process group."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from mlt.torch import recorder
from mlt.torch.compilation import untraced_class
from mlt.torch.profiling import recorded_wait
from mlt.torch.recorder import Entry
from mlt.torch.reductions import as_elements
from mlt.torch.staging import leaves
from mlt.torch.work import CallQueue, failure_of, future_pair, publish

import torch
import torch.distributed as dist
from mlt.errors import MltError, UnknownOperationError, WaitTimeoutError

if TYPE_CHECKING:
    from mlt import Completion, Context, Operation

USER_TAGS: Final = 1 << 32
_KEPT_WORKS: Final = 64
_SLICE: Final = timedelta(milliseconds=10)
_END_SLICE_SECONDS: Final = 0.05


@untraced_class
class TransferWork(dist.Work):
    """Operations of the transport in progress, which end together. ``wait`` drives the transport on its own thread.

    It raises RuntimeError with the work's description and the transport's error as cause. ``landed`` runs once after
    all completed, before any waiter returns; ``observe`` gets the completion of each that did. ``publisher`` completes
    the future: callbacks of ``then`` may wait. ``entry``: of the flight recorder.
    """

    def __init__(
        self,
        operations: Sequence[Operation],
        description: object,
        result: Any,
        publisher: CallQueue,
        landed: Callable[[], None] | None = None,
        observe: Callable[[Completion], None] | None = None,
        also_uses: Sequence[torch.Tensor] = (),
        error: Exception | None = None,
        entry: Entry | None = None,
    ) -> None:
        super().__init__()
        self._entry = entry
        self._observe = observe
        self._operations = list(operations)
        self._description = description
        self._result = result
        self._also_uses = also_uses  # beside the result
        self._publisher = publisher
        self._landed = landed
        self._lock = threading.Lock()
        self._error = error
        if entry is not None:
            entry.watch(self)
            if error is not None:
                entry.end(error)

    def __str__(self) -> str:
        return str(self._description)

    @property
    def is_of_one_element(self) -> bool:
        tensors = self._result
        return isinstance(tensors, list) and [getattr(one, "nbytes", 0) <= 8 for one in tensors] == [True]

    @property
    def memory(self) -> set[int]:
        """Addresses of the storages that the operations use."""
        return _memory(leaves([self._result, self._also_uses]))

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        return recorded_wait(lambda: self._wait(timeout))

    def _wait(self, timeout: timedelta) -> bool:
        self.settle(timeout.total_seconds() if timeout > timedelta(0) else None)
        if self._error is not None:
            raise self._error from self._error.__cause__
        return True

    def is_completed(self) -> bool:
        if self._is_settled:
            return True
        if not self.has_ended:
            return False
        self.settle(None)  # at once; a caller that only polls reads the results next
        return True

    def is_success(self) -> bool:
        return not self._operations and self._error is None

    @property
    def has_ended(self) -> bool:
        """Whether every operation has, also before any wait for them."""
        return all(operation.done() for operation in tuple(self._operations))

    @property
    def _is_settled(self) -> bool:
        """Whether nothing is left to wait for. Without the lock: ``settle`` takes these away in this order."""
        return not self._operations and self._landed is None

    def exception(self) -> Any:
        return self._error

    def result(self) -> list[torch.Tensor]:
        """The tensors of the result, for which this waits."""
        self.wait()
        return leaves(self._result)

    def cancel(self, reason: str = "") -> None:
        """Request cancellation; ``wait`` then ends soon. ``reason``: in the error of every rank of a collective."""
        for operation in tuple(self._operations):
            with suppress(MltError):
                operation.cancel(reason=reason)

    def get_future(self) -> Any:
        source, future = future_pair()
        if self._is_settled:  # C++ that has waited reads the value at once, as DDP's join() does
            publish(source, self._result, self._error)
            return future
        pending = _Countdown(lambda: self._publisher.submit(_Publication(self, source), self._settle, self._result))
        for operation in tuple(self._operations):
            pending.add(operation)
            operation.report_if_slow()  # wait() may never be called: DDP does not
        pending.end()
        return future

    def settle(self, seconds: float | None) -> None:
        """Wait for the operations once; a second caller gets the same outcome. Raises RuntimeError when too late."""
        if not self._settles_within(seconds):
            raise RuntimeError(f"{self._description}: still in progress after {seconds:g} s (wait again)")

    def ends_before(self, left: Callable[[], float] | None) -> bool:
        """Wait for the operations until ``left()`` is 0 s (None: without a limit); whether they have ended."""
        while not self._is_settled:
            seconds = None if left is None else min(left(), _END_SLICE_SECONDS)
            if not self._settles_within(seconds) and seconds == 0:
                return False
        return True

    def _settles_within(self, seconds: float | None) -> bool:
        if self._is_settled:
            return True
        until = None if seconds is None else time.monotonic() + seconds
        if not self._lock.acquire(timeout=-1 if seconds is None else seconds):
            return False  # another thread waits for longer
        try:
            while self._operations:
                try:
                    done = self._operations[0].wait(None if until is None else max(until - time.monotonic(), 0.0))
                    if self._observe is not None:
                        self._observe(done)
                except WaitTimeoutError:
                    return False
                except MltError as error:
                    # The first cause counts; the others are waited for, since their memory is in use until they end.
                    if self._error is None:
                        self._error = failure_of(self._description, error)
                del self._operations[0]
            if self._landed is not None and self._error is None:
                self._landed()
            self._landed = None
            if self._entry is not None:
                self._entry.end(self._error)
        finally:
            self._lock.release()
        return True

    def _settle(self) -> None:
        self.settle(None)


def _content(tensor: torch.Tensor) -> str:
    return f"{tensor.nbytes} bytes of {str(tensor.dtype).removeprefix('torch.')}"


def _memory(tensors: Iterable[torch.Tensor]) -> set[int]:
    return {tensor.untyped_storage().data_ptr() for tensor in tensors}


class _Countdown:
    """Calls ``then`` once every operation added has completed, and ``end`` was called."""

    def __init__(self, then: Callable[[], None]) -> None:
        self._then = then
        self._lock = threading.Lock()
        self._left = 1

    def add(self, operation: Operation) -> None:
        with self._lock:
            self._left += 1
        try:
            operation.add_done_callback(self.end)
        except UnknownOperationError:
            self.end()  # another thread that waited has taken its completion

    def end(self, _: object = None) -> None:
        with self._lock:
            self._left -= 1
            ended = self._left == 0
        if ended:
            self._then()


class _Publication:
    """Completes the future of a ``TransferWork`` on one of the publisher's threads."""

    def __init__(self, work: TransferWork, source: Any) -> None:
        self._work = work
        self._source = source

    def run(self, call: Callable[[], None]) -> None:
        call()

    def publish(self, result: Any) -> None:
        publish(self._source, result, self._work.exception())


class InProgress:
    """Works that have not ended, oldest first: one that its caller drops still gives its tensor back.

    The latest of one element are kept after that too: inside ``join(divide_by_initial_world_size=False)`` torch's
    reducer waits for one of which it holds the half in C++ only, which without the other waits for ever.
    """

    def __init__(self) -> None:
        self._works: deque[TransferWork] = deque()
        self._kept: deque[TransferWork] = deque(maxlen=_KEPT_WORKS)
        self._lock = threading.Lock()
        self._failure = ""

    def add(self, work: TransferWork) -> TransferWork:
        """Keep a work until it ends."""
        with self._lock:
            while self._works and self._works[0].is_completed():
                self._works.popleft()
            self._works.append(work)
            if work.is_of_one_element:
                self._kept.append(work)
            failure = self._failure
        if failure:
            work.cancel(failure)
        return work

    def uses(self, tensors: Any) -> bool:
        """Whether a work that has not ended uses memory of one of these tensors, which may be nested lists."""
        with self._lock:
            pending = [work for work in self._works if not work.is_completed()]
            if not pending:
                return False
            memory = _memory(leaves(tensors))
            return any(not memory.isdisjoint(work.memory) for work in pending)

    def finish(self) -> None:
        """Wait until all have ended; their waiters see their errors."""
        self.unfinished(None)

    def unfinished(self, left: Callable[[], float] | None) -> str:
        """``finish``, until ``left()`` is 0 s; the oldest that has not ended then, empty if all have."""
        while True:
            with self._lock:
                work = self._works[0] if self._works else None
            if work is None:
                return ""
            if not work.ends_before(left):
                return str(work)
            with self._lock:
                if self._works and self._works[0] is work:
                    self._works.popleft()

    def fail(self, reason: str) -> None:
        """Cancel all, and those that are added later."""
        with self._lock:
            self._failure = reason
            works = tuple(self._works)
        for work in works:
            work.cancel(reason)


@untraced_class
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
        limit = timeout.total_seconds() if timeout > timedelta(0) else -1
        if not self._lock.acquire(timeout=limit):
            raise RuntimeError(f"mlt recv from any rank: still in progress after {limit:g} s (wait again)")
        try:
            if self._source is None:
                source, work, landing = self._choose(timeout.total_seconds() if timeout > timedelta(0) else None)
                work.wait(timeout)
                with torch.no_grad():
                    self._tensor.copy_(landing.reshape(self._tensor.shape))
                self._source = source
        finally:
            self._lock.release()
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

    def __init__(
        self,
        context: Context,
        ranks: tuple[int, ...],
        *,
        own: int,
        tag: int,
        name: str,
        publisher: CallQueue,
        recorded_as: str | None = None,
    ) -> None:
        self._recorded_as = recorded_as or name  # by the flight recorder
        self._publisher = publisher
        self._context = context
        self._ranks = ranks
        self._own = own
        self._tag = tag
        self._name = name
        self._in_progress = InProgress()
        self._standing: dict[int, dict[int, tuple[TransferWork, torch.Tensor]]] = {}  # by tag and group rank
        self._any_waiting: dict[int, int] = {}  # receives from any source that have not chosen one, by tag
        self._lock = threading.Lock()

    def send(self, tensor: torch.Tensor, peer: int, tag: int, seconds: float) -> TransferWork:
        """Start sending a tensor to group rank ``peer``."""
        data = as_elements(tensor.detach().contiguous())
        description = self._describe(f"send to rank {peer}", tag)
        operations = []
        if data.numel():
            sent = self._context.post_send(data, to=self._ranks[peer], tag=self._tag + tag, timeout=seconds)
            operations = [sent.name_in_log(description)]
        entry = self._record(f"send to rank {peer}", tag, tensor)
        return self._in_progress.add(TransferWork(operations, description, [tensor], self._publisher, entry=entry))

    def recv(self, tensor: torch.Tensor, peer: int, tag: int, seconds: float) -> TransferWork | AnySourceWork:
        """Start receiving into a tensor from group rank ``peer``; a strided one is filled when the wait returns."""
        with self._lock:
            left = {} if self._any_waiting.get(tag) else self._standing.get(tag, {})
            work, landing = left.pop(peer, (None, tensor))
        if work is None:
            return self._in_progress.add(self._post_receive(tensor, peer, tag, seconds))
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
            others = [rank for peer, rank in enumerate(self._ranks) if peer != self._own]
            watch = self._context.watch_wait(self._describe("recv from any rank", tag), others)
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
                watch.look("no rank has sent yet, or the network is slow")
                with suppress(RuntimeError):
                    some.wait(_SLICE)

        return AnySourceWork(choose, is_ready, tensor)

    def unfinished(self, left: Callable[[], float] | None) -> str:
        """Withdraw what receives from any source left posted, and wait for the others until ``left()`` is 0 s (None:
        without a limit). The oldest that has not ended then; empty if all have."""
        for posted in tuple(self._standing.values()):
            for work, _ in tuple(posted.values()):
                work.cancel()
        return self._in_progress.unfinished(left)

    def fail(self, reason: str) -> None:
        """Cancel all sends and receives."""
        self._in_progress.fail(reason)

    def finish(self) -> None:
        """``unfinished`` without a limit."""
        self.unfinished(None)

    def _stand(self, tensor: torch.Tensor, tag: int, seconds: float) -> dict[int, tuple[TransferWork, torch.Tensor]]:
        """The receives of ``tag`` that wait for any source, one for each other rank; requires the lock."""
        posted = self._standing.setdefault(tag, {})
        for _, landing in posted.values():
            self._check_size(tensor, landing, tag)
        for peer in range(len(self._ranks)):
            if peer != self._own and peer not in posted:
                landing = torch.empty(tensor.numel(), dtype=tensor.dtype)
                posted[peer] = (self._post_receive(landing, peer, tag, seconds), landing)
        return posted

    def _post_receive(self, tensor: torch.Tensor, peer: int, tag: int, seconds: float) -> TransferWork:
        landing = tensor if tensor.is_contiguous() else torch.empty_like(tensor, memory_format=torch.contiguous_format)
        description = self._describe(f"recv from rank {peer}", tag)
        operations = []
        if landing.numel():
            posted = self._context.post_recv(
                as_elements(landing), 0.0, from_=self._ranks[peer], tag=self._tag + tag, timeout=seconds
            )
            operations = [posted.name_in_log(description)]

        def landed() -> None:
            if landing is not tensor:
                with torch.no_grad():
                    tensor.copy_(landing)

        entry = self._record(f"recv from rank {peer}", tag, tensor)
        return TransferWork(operations, description, [tensor], self._publisher, landed, entry=entry)

    def _check_size(self, tensor: torch.Tensor, landing: torch.Tensor, tag: int) -> None:
        if (tensor.numel(), tensor.dtype) != (landing.numel(), landing.dtype):
            raise ValueError(
                f"{self._describe('recv', tag)}: an earlier receive from any source posted {_content(landing)} for "
                f"each rank, this one has {_content(tensor)}; give messages of different sizes or types different tags"
            )

    def _record(self, what: str, tag: int, tensor: torch.Tensor) -> Entry | None:
        return recorder.begin(f"{what}, tag {tag}", self._recorded_as, None, tensor)

    def _describe(self, what: str, tag: int) -> str:
        return f"mlt {what}, tag {tag} (group {self._name!r}, rank {self._own})"
