"""How an operation ended, and the handle that names it while it runs."""

from __future__ import annotations

from dataclasses import dataclass, field
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


@dataclass(frozen=True, slots=True)
class Operation:
    """A send, receive or collective under way. Two handles are equal if they name the same operation of a context.

    A collective's ``peer`` is -1 and its ``tag`` 0.
    """

    id: int
    kind: Kind = field(compare=False)
    peer: int = field(compare=False)
    tag: int = field(compare=False)
    context: Context = field(repr=False)

    def wait(self, timeout: float | None = None) -> Completion:
        """``Context.wait`` for this operation."""
        return self.context.wait(self, timeout)

    def cancel(self) -> None:
        """Ask for the operation to be given up; it still completes (status "cancelled", or as it ended before)."""
        self.context.cancel(self)

    def __str__(self) -> str:
        if self.peer < 0:
            return self.kind
        return f"{self.kind} {'to' if self.kind == 'send' else 'from'} rank {self.peer}, tag {self.tag},"


@dataclass(frozen=True, slots=True)
class Completion:
    """How a send, receive or collective ended. The tensor belongs to the caller again.

    ``bytes`` is the tensor's size; ``missing`` lists (byte offset, byte length) of what did not arrive, ascending and
    merged (receives only); ``missing_bytes`` is its sum (for a send: as the receiver reported it). ``repairs`` counts
    segments that were sent again (send) or arrived by repair (receive). ``elapsed_ns`` runs from post to completion.
    ``error`` is empty unless the operation failed; a collective's ``peer`` is then the rank at fault, or -1.
    """

    op: Operation
    kind: Kind
    status: Status
    peer: int
    tag: int
    bytes: int
    missing: list[tuple[int, int]]
    missing_bytes: int
    allowed_missing_bytes: int
    repairs: int
    elapsed_ns: int
    error: str = ""

    @property
    def loss_fraction(self) -> float:
        """Missing bytes over all bytes; 0 for an empty tensor."""
        return self.missing_bytes / self.bytes if self.bytes else 0.0

    @property
    def failed(self) -> bool:
        """Whether the operation failed: what the tensor holds is then unspecified."""
        return bool(self.error)

    def raise_if_failed(self) -> None:
        """Raise the ``TransferError`` of a failed operation, with this completion attached."""
        if not self.error:
            return
        error = from_status(self.status, self.error, self.peer)
        if isinstance(error, TransferError):
            error.completion = self
        raise error


def completion_of(context: Context, native: _core.Completion, op: Operation | None = None) -> Completion:
    """The public form of a completion taken from the native library; ``op`` where the caller has it."""
    if op is None:
        is_transfer = native.kind in ("send", "recv")
        peer, tag = (native.peer, native.tag) if is_transfer else (-1, 0)
        op = Operation(native.operation, native.kind, peer, tag, context)
    status, failed_peer, total_bytes, missing, missing_bytes, allowed_bytes, repairs, elapsed_ns, error = native.outcome
    return Completion(
        op,
        op.kind,
        status,
        op.peer if op.peer >= 0 else failed_peer,
        op.tag,
        total_bytes,
        missing,
        missing_bytes,
        allowed_bytes,
        repairs,
        elapsed_ns,
        error,
    )
