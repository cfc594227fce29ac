"""``Operation``, the handle of a posted operation, and ``Completion``, its result."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, Literal

from mlt import _waits
from mlt._callbacks import Callbacks, Watch
from mlt.errors import TransferError, from_status

if TYPE_CHECKING:
    from mlt import _core
    from mlt.context import Context

Kind = Literal[
    "send",
    "recv",
    "all_reduce",
    "all_to_all",
    "gather",
    "all_gather",
    "reduce_scatter",
    "broadcast",
    "reduce",
    "scatter",
    "barrier",
    "push_pull",
]
Status = Literal[
    "complete",  # everything arrived
    "within_bound",  # some segments are missing, within the loss bound
    "deadline",  # the deadline passed first: more than the loss bound may be missing
    "size_mismatch",  # this status and the following are failures
    "type_mismatch",
    "peer_failed",
    "timed_out",
    "cancelled",
]


class Operation:
    """Handle of a posted operation. Two handles are equal if they refer to the same operation of a context.

    A collective has ``peer`` -1 and ``tag`` 0; a push-pull has ``peer`` -1, and its key as ``tag``. ``await op`` waits
    in an asyncio coroutine, as ``op.wait()`` does in a thread.

    >>> async def exchange():
    ...     receive = rank_1.post_recv(bytearray(4), from_=0)
    ...     sent = await rank_0.post_send(b"four", to=1)
    ...     return sent.kind, (await receive).status
    >>> asyncio.run(exchange())
    ('send', 'complete')
    """

    # Not dataclasses: creating a frozen one takes microseconds, as long as the operation itself. So too Completion.
    __slots__ = ("__weakref__", "_context", "_id", "_kind", "_peer", "_tag", "_watch")

    def __init__(self, id: int, kind: Kind, peer: int, tag: int, context: Context) -> None:
        self._watch: Watch | None = None
        self._id = id
        self._kind = kind
        self._peer = peer
        self._tag = tag
        self._context = context

    @property
    def id(self) -> int:
        """Number of the operation in its context."""
        return self._id

    @property
    def kind(self) -> Kind:
        """Kind of the operation."""
        return self._kind

    @property
    def peer(self) -> int:
        """The remote rank, or -1."""
        return self._peer

    @property
    def tag(self) -> int:
        """The tag of the post."""
        return self._tag

    @property
    def context(self) -> Context:
        """The context of the post."""
        return self._context

    def wait(self, timeout: float | None = None) -> Completion:
        """``Context.wait`` for this operation."""
        return self._context.wait(self, timeout)

    def done(self) -> bool:
        """Whether it completed or failed."""
        if self._watch is not None and self._watch.native is not None:
            return True
        return self._context.engine.is_done(self._id) is not False

    def add_done_callback(self, function: Callable[[Any], object]) -> None:
        """Call ``function(op)`` once, when the operation completes.

        It runs on a library thread that holds no lock, on the thread that waits for the operation, or at once on this
        thread if the operation has completed. ``op.wait()`` may then be called any number of times, and ``poll_cq``
        does not take the completion. Keep ``function`` short: it delays other callbacks. An exception that it raises is
        logged.

        Raises UnknownOperationError if the completion was taken before.
        """
        watch = self._watch or Callbacks.of(self._context).watch(self)
        watch.add(self, function)

    def __await__(self) -> Generator[Any, None, Completion]:
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()

        def settle() -> None:
            if not ended.done():
                ended.set_result(None)

        self.add_done_callback(lambda _: loop.call_soon_threadsafe(settle))
        self.report_if_slow()
        yield from ended
        return self._context.wait(self)

    @property
    def is_told(self) -> bool:
        """Whether every taken completion is passed to ``settle``, so that callbacks may be added at any time."""
        return False

    def taken(self) -> _core.Completion | None:
        """The completion that ``settle`` recorded, or None."""
        return None

    def settle(self, native: _core.Completion) -> None:
        """Record the completion; called by the thread that took it."""
        if self._watch is not None:
            Callbacks.of(self._context).forget(self)
            self._watch.settle(native)

    def on_quiet(self, seconds: int) -> None:
        """Called by a wait for every second that it has lasted; logs once what it waits for."""
        _waits.on_quiet(self, seconds)

    def report_if_slow(self) -> None:
        """Log a line, as ``wait`` does, if this operation takes 5 s; for callers that need it without a ``wait``."""
        _waits.slow_operations.add(self)

    def name_in_log(self, name: str) -> Operation:
        """Call it ``name`` in such a line, where its tag says nothing to users. Returns the operation."""
        _waits.names[self] = name
        return self

    def expect_idle(self) -> Operation:
        """Log no line when a wait for this operation lasts: it may take hours by design. Returns the operation."""
        _waits.idle.add(self)
        return self

    def cancel(self, *, reason: str = "") -> None:
        """``Context.cancel`` for this operation."""
        self._context.cancel(self, reason=reason)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Operation):
            return NotImplemented
        return self._id == other._id and self._context is other._context

    def __hash__(self) -> int:
        return hash((self._id, id(self._context)))

    def __str__(self) -> str:
        if self._kind == "push_pull":
            return f"push-pull of key {self._tag}"
        if self._peer < 0:
            return self._kind
        return f"{self._kind} {'to' if self._kind == 'send' else 'from'} rank {self._peer}, tag {self._tag},"

    def __repr__(self) -> str:
        return f"Operation(id={self._id}, kind={self._kind!r}, peer={self._peer}, tag={self._tag})"


class Completion:
    """Result of an operation. The tensor belongs to the caller again.

    >>> receive = rank_1.post_recv(np.zeros(8, np.float32), loss_bound=0.5, from_=0, tag=9, deadline=0.05)  # none sends
    >>> done = receive.wait()
    >>> done.status, done.missing, done.failed
    ('deadline', [(0, 32)], False)
    """

    __slots__ = ("_native", "_op")

    def __init__(self, op: Operation, native: _core.Completion) -> None:
        self._op = op
        self._native = native

    @property
    def op(self) -> Operation:
        """The completed operation."""
        return self._op

    @property
    def kind(self) -> Kind:
        """Kind of the operation."""
        return self._op._kind

    @property
    def status(self) -> Status:
        """Final status of the operation."""
        return self._native.status

    @property
    def peer(self) -> int:
        """The remote rank; for a collective or push-pull the rank at fault, or -1."""
        return self._op._peer if self._op._peer >= 0 else self._native.failed_peer

    @property
    def tag(self) -> int:
        """The tag of the post, or the key of a push-pull."""
        return self._op._tag

    @property
    def bytes(self) -> int:
        """Size of the tensor."""
        return self._native.total_bytes

    @property
    def missing(self) -> list[tuple[int, int]]:
        """(Byte offset, byte length) of each missing range of a receive, ascending and merged; else empty."""
        return self._native.missing

    @property
    def missing_bytes(self) -> int:
        """Bytes missing: of a receive the sum of ``missing``, of a send as the receiver reported it, of a collective
        those missing from what this rank received."""
        return self._native.missing_bytes

    @property
    def allowed_missing_bytes(self) -> int:
        """Bytes that the loss bound allowed to be missing."""
        return self._native.allowed_missing_bytes

    @property
    def repairs(self) -> int:
        """Segments that were sent again (send) or arrived by repair (receive)."""
        return self._native.repaired_segments

    @property
    def elapsed_ns(self) -> int:
        """Time from post to completion."""
        return self._native.elapsed_ns

    @property
    def error(self) -> str:
        """Error text; empty unless the operation failed."""
        return self._native.error

    @property
    def loss_fraction(self) -> float:
        """Missing bytes over all bytes; 0 for an empty tensor."""
        return self.missing_bytes / self.bytes if self.bytes else 0.0

    @property
    def failed(self) -> bool:
        """Whether the operation failed; the tensor's content is then unspecified."""
        return self._native.failed

    def raise_if_failed(self) -> None:
        """Raise the ``TransferError`` of a failed operation, with this completion attached."""
        if not self._native.failed:
            return
        error = from_status(self.status, self.error, self.peer)
        if isinstance(error, TransferError):
            error.completion = self
        raise error

    def __eq__(self, other: object) -> bool:
        # An operation has one completion.
        if not isinstance(other, Completion):
            return NotImplemented
        return self._op == other._op

    def __hash__(self) -> int:
        return hash(self._op)

    def __repr__(self) -> str:
        end = f", error={self.error!r}" if self.failed else ""
        return (
            f"Completion(op={self._op!r}, status={self.status!r}, bytes={self.bytes}, "
            f"missing_bytes={self.missing_bytes}, repairs={self.repairs}, elapsed_ns={self.elapsed_ns}{end})"
        )


def completion_of(context: Context, native: _core.Completion) -> Completion:
    """The public form of a native completion, for callers that do not hold the operation."""
    if native.handle is not None:
        handle: Operation | None = native.handle()
        if handle is not None:
            handle.settle(native)
            return Completion(handle, native)
    peer = native.peer if native.kind in ("send", "recv") else -1
    return Completion(Operation(native.operation, native.kind, peer, native.tag, context), native)
