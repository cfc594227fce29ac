"""Exceptions of mlt. Every text names the rank, the tensor or tag if any, and the cause.

All derive from ``MltError``. ``code`` is the kind of failure, ``peer`` the rank at fault. Failed transfers
(``TransferError``) also carry their ``completion``. After any of them the tensor belongs to the caller again.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, Protocol

__all__ = [
    "CancelledError",
    "ClosedError",
    "ConfigError",
    "ErrorCode",
    "InvalidBufferError",
    "LimitError",
    "MltError",
    "OperationTimeoutError",
    "PeerFailedError",
    "PeerMismatchError",
    "PortInUseError",
    "RendezvousError",
    "SizeMismatchError",
    "SystemCallError",
    "TransferError",
    "TypeMismatchError",
    "UnknownOperationError",
    "UnknownPeerError",
    "WaitTimeoutError",
]


class ErrorCode(str, Enum):
    """Kinds of failure; the native library uses the same names."""

    CONFIG = "config"
    PORT_IN_USE = "port_in_use"
    RENDEZVOUS = "rendezvous"
    PEER_MISMATCH = "peer_mismatch"
    UNKNOWN_PEER = "unknown_peer"
    PEER_FAILED = "peer_failed"
    BUFFER = "buffer"
    SIZE_MISMATCH = "size_mismatch"
    TYPE_MISMATCH = "type_mismatch"
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"
    LIMIT = "limit"
    UNKNOWN_OPERATION = "unknown_operation"
    CLOSED = "closed"
    SYSTEM = "system"


class MltError(Exception):
    """Base class of mlt's exceptions. ``code``: the kind of failure. ``peer``: the rank at fault, or None."""

    default_code = ErrorCode.SYSTEM

    def __init__(self, message: str, *, code: ErrorCode | None = None, peer: int | None = None) -> None:
        super().__init__(message)
        self.code = code if code is not None else self.default_code
        self.peer = peer


class ConfigError(MltError, ValueError):
    """An option, argument or environment variable is missing or out of range."""

    default_code = ErrorCode.CONFIG


class InvalidBufferError(MltError, ValueError):
    """A tensor or loss bound does not fit the operation; nothing was posted."""

    default_code = ErrorCode.BUFFER


class RendezvousError(MltError):
    """Not every rank of the job connected in time."""

    default_code = ErrorCode.RENDEZVOUS


class PortInUseError(MltError, OSError):
    """The address or port to listen on is in use or does not belong to this host."""

    default_code = ErrorCode.PORT_IN_USE


class PeerMismatchError(MltError):
    """A peer speaks another protocol version or belongs to another job."""

    default_code = ErrorCode.PEER_MISMATCH


class UnknownPeerError(MltError, ValueError):
    """The rank is outside this job, or it is this rank itself."""

    default_code = ErrorCode.UNKNOWN_PEER


class LimitError(MltError):
    """A queue or table is full; the text names it and the fix."""

    default_code = ErrorCode.LIMIT


class UnknownOperationError(MltError, KeyError):
    """The operation was not posted in this context, or its completion was already taken."""

    default_code = ErrorCode.UNKNOWN_OPERATION

    def __str__(self) -> str:
        # KeyError would show the text in quotes.
        return str(self.args[0])


class ClosedError(MltError):
    """The context was closed."""

    default_code = ErrorCode.CLOSED


class SystemCallError(MltError):
    """A system call failed."""

    default_code = ErrorCode.SYSTEM


class WaitTimeoutError(MltError, TimeoutError):
    """The timeout of a wait passed. The operation stays in progress; do not access its tensor."""

    default_code = ErrorCode.TIMEOUT


class TransferReport(Protocol):
    """Fields of a failed operation's ``Completion``. That class is in ``mlt.operation``, which imports this module."""

    @property
    def kind(self) -> str: ...
    @property
    def status(self) -> str: ...
    @property
    def peer(self) -> int: ...
    @property
    def tag(self) -> int: ...
    @property
    def bytes(self) -> int: ...
    @property
    def missing(self) -> list[tuple[int, int]]: ...
    @property
    def missing_bytes(self) -> int: ...
    @property
    def repairs(self) -> int: ...
    @property
    def elapsed_ns(self) -> int: ...
    @property
    def error(self) -> str: ...


class TransferError(MltError):
    """An operation failed. ``completion`` reports what had arrived; None where unknown."""

    completion: TransferReport | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        # Pickled without the completion, which belongs to a context of this process.
        return type(self), self.args, {"code": self.code, "peer": self.peer}


class PeerFailedError(TransferError):
    """The peer failed, left, or never connected."""

    default_code = ErrorCode.PEER_FAILED


class SizeMismatchError(TransferError):
    """Sender and receiver posted different sizes."""

    default_code = ErrorCode.SIZE_MISMATCH


class TypeMismatchError(TransferError):
    """Sender and receiver posted different element types."""

    default_code = ErrorCode.TYPE_MISMATCH


class OperationTimeoutError(TransferError, TimeoutError):
    """The operation did not complete within its timeout."""

    default_code = ErrorCode.TIMEOUT


class CancelledError(TransferError):
    """The operation was cancelled, by this rank or by the peer."""

    default_code = ErrorCode.CANCELLED


_CLASS_OF_CODE: dict[ErrorCode, type[MltError]] = {
    ErrorCode.CONFIG: ConfigError,
    ErrorCode.PORT_IN_USE: PortInUseError,
    ErrorCode.RENDEZVOUS: RendezvousError,
    ErrorCode.PEER_MISMATCH: PeerMismatchError,
    ErrorCode.UNKNOWN_PEER: UnknownPeerError,
    ErrorCode.PEER_FAILED: PeerFailedError,
    ErrorCode.BUFFER: InvalidBufferError,
    ErrorCode.SIZE_MISMATCH: SizeMismatchError,
    ErrorCode.TYPE_MISMATCH: TypeMismatchError,
    ErrorCode.TIMEOUT: OperationTimeoutError,
    ErrorCode.CANCELLED: CancelledError,
    ErrorCode.LIMIT: LimitError,
    ErrorCode.UNKNOWN_OPERATION: UnknownOperationError,
    ErrorCode.CLOSED: ClosedError,
    ErrorCode.SYSTEM: SystemCallError,
}

_CODE_OF_STATUS: dict[str, ErrorCode] = {
    "size_mismatch": ErrorCode.SIZE_MISMATCH,
    "type_mismatch": ErrorCode.TYPE_MISMATCH,
    "peer_failed": ErrorCode.PEER_FAILED,
    "timed_out": ErrorCode.TIMEOUT,
    "cancelled": ErrorCode.CANCELLED,
}


def class_of(code: ErrorCode) -> type[MltError]:
    """The class of the native library's errors with this code."""
    return _CLASS_OF_CODE[code]


def from_code(code: str, message: str, peer: int) -> MltError:
    """The exception for an error of the native library; ``peer`` below 0 means none."""
    kind = ErrorCode(code)
    return class_of(kind)(message, code=kind, peer=peer if peer >= 0 else None)


def from_status(status: str, message: str, peer: int) -> MltError:
    """The exception for an operation that failed with ``status``; ``peer`` below 0 means none."""
    return from_code(_CODE_OF_STATUS.get(status, ErrorCode.CANCELLED).value, message, peer)
