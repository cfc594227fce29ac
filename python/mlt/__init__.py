"""mlt: a bounded-loss network transport for distributed training.

Names that need the native library load on first use. The pure-Python parts (``mlt.planners``, ``mlt.switch_configs``,
the command line's help) import in milliseconds and work without compiled code.
"""

from __future__ import annotations

from importlib import import_module

# As in typing, which takes longer to import than all of the rest.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from mlt import errors, metrics, priority
    from mlt._core import (
        Reduction,
    )
    from mlt.context import (
        Context,
    )
    from mlt.errors import (
        CancelledError,
        ClosedError,
        ConfigError,
        ErrorCode,
        InvalidBufferError,
        LimitError,
        MltError,
        OperationTimeoutError,
        PeerFailedError,
        PeerMismatchError,
        PortInUseError,
        RendezvousError,
        SizeMismatchError,
        SystemCallError,
        TransferError,
        TypeMismatchError,
        UnknownOperationError,
        UnknownPeerError,
        WaitTimeoutError,
    )
    from mlt.operation import (
        Completion,
        Operation,
    )
    from mlt.options.faults import (
        Faults,
    )
    from mlt.priority import (
        SegmentGrid,
        SegmentPriorities,
    )
    from mlt.push_pull import (
        PushPull,
        PushPullHandle,
        PushPullResult,
        SummationService,
    )

__version__ = "0.1.0"

# Name -> module that defines it, imported on first use.
_LAZY: dict[str, str] = {
    "CancelledError": "mlt.errors",
    "ClosedError": "mlt.errors",
    "Completion": "mlt.operation",
    "ConfigError": "mlt.errors",
    "Context": "mlt.context",
    "ErrorCode": "mlt.errors",
    "Faults": "mlt.options.faults",
    "InvalidBufferError": "mlt.errors",
    "LimitError": "mlt.errors",
    "MltError": "mlt.errors",
    "Operation": "mlt.operation",
    "OperationTimeoutError": "mlt.errors",
    "PeerFailedError": "mlt.errors",
    "PeerMismatchError": "mlt.errors",
    "PortInUseError": "mlt.errors",
    "PushPull": "mlt.push_pull",
    "PushPullHandle": "mlt.push_pull",
    "PushPullResult": "mlt.push_pull",
    "Reduction": "mlt._core",
    "RendezvousError": "mlt.errors",
    "SegmentGrid": "mlt.priority",
    "SegmentPriorities": "mlt.priority",
    "SizeMismatchError": "mlt.errors",
    "SummationService": "mlt.push_pull",
    "SystemCallError": "mlt.errors",
    "TransferError": "mlt.errors",
    "TypeMismatchError": "mlt.errors",
    "UnknownOperationError": "mlt.errors",
    "UnknownPeerError": "mlt.errors",
    "WaitTimeoutError": "mlt.errors",
}
_SUBMODULES = ("errors", "metrics", "priority")

__all__ = [
    "CancelledError",
    "ClosedError",
    "Completion",
    "ConfigError",
    "Context",
    "ErrorCode",
    "Faults",
    "InvalidBufferError",
    "LimitError",
    "MltError",
    "Operation",
    "OperationTimeoutError",
    "PeerFailedError",
    "PeerMismatchError",
    "PortInUseError",
    "PushPull",
    "PushPullHandle",
    "PushPullResult",
    "Reduction",
    "RendezvousError",
    "SegmentGrid",
    "SegmentPriorities",
    "SizeMismatchError",
    "SummationService",
    "SystemCallError",
    "TransferError",
    "TypeMismatchError",
    "UnknownOperationError",
    "UnknownPeerError",
    "WaitTimeoutError",
    "__version__",
    "errors",
    "metrics",
    "priority",
]


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        return import_module(f"mlt.{name}")
    module = _LAZY.get(name)
    if module is None:
        raise AttributeError(f"module 'mlt' has no attribute {name!r}")
    value = getattr(import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY, *_SUBMODULES})
