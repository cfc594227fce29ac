"""How an operation ended, and the handle that names it while it runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, Literal

from mlt._callbacks import Callbacks, Watch
from mlt.errors import TransferError, from_status

if TYPE_CHECKING:
    from mlt import _core
    from mlt.context import Context

Kind = Literal["send", "recv", "all_reduce", "all_to_all", "gather", "push_pull"]
Status = Literal[
    "complete",  # everything arrived
    "within_bound",  # some is missing, no more than the loss bound allows
    "deadline",  # the deadline passed first: more than the bound may be missing
    "size_mismatch",  # failed from here on
    "type_mismatch",
    "peer_failed",
    "timed_out",
    "cancelled",
]


class Operation:
    """An operation under way. Two handles are equal if they name the same operation of a context.

    The ``peer`` of a collective or push-pull is -1; a collective's ``tag`` is 0, a push-pull's its key. ``await op``
    waits for its completion in a coroutine of asyncio, as ``op.wait()`` does in a thread.
    """

    # Neither this nor Completion is a dataclass: a frozen one takes microseconds to make, as long as the operation.
    __slots__ = ("_context", "_id", "_kind", "_peer", "_tag", "_watch")

    def __init__(self, id: int, kind: Kind, peer: int, tag: int, context: Context) -> None:
        self._watch: Watch | None = None
        self._id = id
        self._kind = kind
        self._peer = peer
        self._tag = tag
        self._context = context

    @property
    def id(self) -> int:
        """Its number in its context."""
        return self._id

    @property
    def kind(self) -> Kind:
        """What it is."""
        return self._kind

    @property
    def peer(self) -> int:
        """The other rank, or -1."""
        return self._peer

    @property
    def tag(self) -> int:
        """The tag it was posted with."""
        return self._tag

    @property
    def context(self) -> Context:
        """The context it was posted in."""
        return self._context

    def wait(self, timeout: float | None = None) -> Completion:
        """``Context.wait`` for this operation."""
        return self._context.wait(self, timeout)

    def done(self) -> bool:
        """Whether it ended, well or not."""
        if self._watch is not None and self._watch.native is not None:
            return True
        return self._context.engine.is_done(self._id) is not False

    def add_done_callback(self, function: Callable[[Any], object]) -> None:
        """Call ``function(op)`` once when it ended: on a thread of the library that holds no lock, on the thread that
        waits for it, or at once on this one if it ended before. ``op.wait()`` may then be called any number of times,
        and ``poll_cq`` does not take it. Keep it short: it delays other callbacks. What it raises is logged.

        Raises UnknownOperationError if its completion was taken before.
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
        yield from ended
        return self._context.wait(self)

    @property
    def is_told(self) -> bool:
        """Whether whoever takes its completion tells it, so that callbacks may be added at any time."""
        return False

    def taken(self) -> _core.Completion | None:
        """Its completion, if it was told."""
        return None

    def settle(self, native: _core.Completion) -> None:
        """Its completion was taken, by the thread that calls this."""
        if self._watch is not None:
            Callbacks.of(self._context).forget(self)
            self._watch.settle(native)

    def cancel(self) -> None:
        """Ask for the operation to be given up; it still completes (status "cancelled", or as it ended before)."""
        self._context.cancel(self)

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
    """How an operation ended. The tensor belongs to the caller again."""

    __slots__ = ("_native", "_op")

    def __init__(self, op: Operation, native: _core.Completion) -> None:
        self._op = op
        self._native = native

    @property
    def op(self) -> Operation:
        """The operation that ended."""
        return self._op

    @property
    def kind(self) -> Kind:
        """What the operation was."""
        return self._op._kind

    @property
    def status(self) -> Status:
        """How it ended."""
        return self._native.status

    @property
    def peer(self) -> int:
        """The other rank; of a collective or push-pull the rank at fault, or -1."""
        return self._op._peer if self._op._peer >= 0 else self._native.failed_peer

    @property
    def tag(self) -> int:
        """The tag it was posted with, or the key."""
        return self._op._tag

    @property
    def bytes(self) -> int:
        """The tensor's size."""
        return self._native.total_bytes

    @property
    def missing(self) -> list[tuple[int, int]]:
        """(Byte offset, byte length) of what did not arrive, ascending and merged (receives only)."""
        return self._native.missing

    @property
    def missing_bytes(self) -> int:
        """The sum of ``missing``; for a send, as the receiver reported it."""
        return self._native.missing_bytes

    @property
    def allowed_missing_bytes(self) -> int:
        """What the loss bound allowed to be missing."""
        return self._native.allowed_missing_bytes

    @property
    def repairs(self) -> int:
        """Segments that were sent again (send) or arrived by repair (receive)."""
        return self._native.repaired_segments

    @property
    def elapsed_ns(self) -> int:
        """From post to completion."""
        return self._native.elapsed_ns

    @property
    def error(self) -> str:
        """Empty unless the operation failed."""
        return self._native.error

    @property
    def loss_fraction(self) -> float:
        """Missing bytes over all bytes; 0 for an empty tensor."""
        return self.missing_bytes / self.bytes if self.bytes else 0.0

    @property
    def failed(self) -> bool:
        """Whether the operation failed: what the tensor holds is then unspecified."""
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
        # An operation ends once.
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
    """The public form of a completion taken from the native library, where the caller does not have the operation."""
    if native.handle is not None:
        handle: Operation | None = native.handle()
        if handle is not None:
            handle.settle(native)
            return Completion(handle, native)
    peer = native.peer if native.kind in ("send", "recv") else -1
    return Completion(Operation(native.operation, native.kind, peer, native.tag, context), native)
