"""How an operation ended, and the handle that names it while it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from mlt.errors import TransferError, from_status

if TYPE_CHECKING:
    from mlt import _core
    from mlt.context import Context

Kind = Literal["send", "recv", "all_reduce", "all_to_all", "gather"]
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
    """A send, receive or collective under way. Two handles are equal if they name the same operation of a context.

    A collective's ``peer`` is -1 and its ``tag`` 0.
    """

    # Neither this nor Completion is a dataclass: a frozen one takes microseconds to make, as long as the operation.
    __slots__ = ("_context", "_id", "_kind", "_peer", "_tag")

    def __init__(self, id: int, kind: Kind, peer: int, tag: int, context: Context) -> None:
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
        if self._peer < 0:
            return self._kind
        return f"{self._kind} {'to' if self._kind == 'send' else 'from'} rank {self._peer}, tag {self._tag},"

    def __repr__(self) -> str:
        return f"Operation(id={self._id}, kind={self._kind!r}, peer={self._peer}, tag={self._tag})"


class Completion:
    """How a send, receive or collective ended. The tensor belongs to the caller again."""

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
        """The other rank; of a collective the rank at fault, or -1."""
        return self._op._peer if self._op._peer >= 0 else self._native.failed_peer

    @property
    def tag(self) -> int:
        """The tag it was posted with."""
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
    is_transfer = native.kind in ("send", "recv")
    peer, tag = (native.peer, native.tag) if is_transfer else (-1, 0)
    return Completion(Operation(native.operation, native.kind, peer, tag, context), native)
