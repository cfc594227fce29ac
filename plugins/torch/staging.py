"""Tensors of an accelerator, staged through page-locked host memory, where the transport moves them.

The copies run on streams of their own: those to the host wait for what the caller's stream holds when the call is made,
those back for the transport, and waiting for the work makes the stream wait for them. The caller's thread blocks for
neither. ``Device`` is what this needs of an accelerator; ``Cuda`` is the only one in the product. A machine without
one runs all of it with the stand-in of tests/plugins/torch/stand_in.py, whose copies come late on purpose.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import torch

# Longer tensors are cut: while one piece is on the network, the next is copied to the host and the last one back.
PIECE_BYTES: Final = 4 << 20

Pair = tuple[torch.Tensor, torch.Tensor]  # in host memory, on the device: same shape and type


class Device(Protocol):
    """Streams, events and page-locked memory of an accelerator; used from several threads.

    Events are the device's own objects. The caller's stream: the one that is current on the calling thread.
    """

    def owns(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor is in this device's memory."""

    def host_like(self, tensor: torch.Tensor) -> torch.Tensor:
        """A contiguous tensor of the same shape and type in page-locked host memory, not initialised."""

    def mark(self, tensor: torch.Tensor) -> Any:
        """An event after what the caller's stream holds now."""

    def copy_to_host(self, pairs: Sequence[Pair], after: Any) -> Any:
        """Start copying, after that event and all copies back that were started before; returns an event."""

    def copy_back(self, pairs: Sequence[Pair], after: Any) -> Any:
        """Start copying the host's tensors to the device, after that event; returns an event."""

    def synchronize(self, event: Any) -> None:
        """Block the calling thread until the event."""

    def is_reached(self, event: Any) -> bool:
        """Whether ``synchronize`` would not block."""

    def wait(self, event: Any) -> None:
        """Make the caller's stream wait for the event."""

    def future(self, tensors: Sequence[torch.Tensor]) -> Any:
        """A future whose result will be these tensors."""

    def complete(self, set_result: Callable[[], None], event: Any) -> None:
        """Complete such a future now; its result may be used after the event."""


class Cuda:
    """NVIDIA's GPUs: two streams on each, so that copies of both directions overlap."""

    def __init__(self) -> None:
        self._streams: dict[int, tuple[torch.cuda.Stream, torch.cuda.Stream]] = {}
        self._lock = threading.Lock()

    def owns(self, tensor: torch.Tensor) -> bool:
        return tensor.is_cuda

    def host_like(self, tensor: torch.Tensor) -> torch.Tensor:
        return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)

    def mark(self, tensor: torch.Tensor) -> Any:
        event = _event()
        event.record(torch.cuda.current_stream(tensor.device))
        return event

    def copy_to_host(self, pairs: Sequence[Pair], after: Any) -> Any:
        out, back = self._of(pairs[0][1].device)
        out.wait_stream(back)
        return self._copy([(host, tensor, tensor) for host, tensor in pairs], out, after)

    def copy_back(self, pairs: Sequence[Pair], after: Any) -> Any:
        _, back = self._of(pairs[0][1].device)
        return self._copy([(tensor, host, tensor) for host, tensor in pairs], back, after)

    def synchronize(self, event: Any) -> None:
        event.synchronize()

    def is_reached(self, event: Any) -> bool:
        return bool(event.query())

    def wait(self, event: Any) -> None:
        torch.cuda.current_stream(event.device).wait_event(event)

    def future(self, tensors: Sequence[torch.Tensor]) -> Any:
        return torch.futures.Future(devices=sorted({tensor.device for tensor in tensors}, key=str))

    def complete(self, set_result: Callable[[], None], event: Any) -> None:
        # A future of a device records an event of its own on the current stream.
        _, back = self._of(event.device)
        with torch.cuda.stream(back):
            back.wait_event(event)
            set_result()

    def _of(self, device: torch.device) -> tuple[torch.cuda.Stream, torch.cuda.Stream]:
        with self._lock:
            if device.index not in self._streams:
                self._streams[device.index] = (_stream(device), _stream(device))
            return self._streams[device.index]

    @staticmethod
    def _copy(copies: Sequence[tuple[torch.Tensor, torch.Tensor, torch.Tensor]], stream: Any, after: Any) -> Any:
        """Copy (to, from, the one on the device) on ``stream``."""
        event = _event()
        with torch.no_grad(), torch.cuda.stream(stream):
            stream.wait_event(after)
            for target, source, tensor in copies:
                # torch would conjugate or negate in the host's memory before the copy has arrived there.
                target.copy_(source.resolve_conj().resolve_neg(), non_blocking=True)
                # The allocator must not give its memory away before this stream has used it.
                tensor.record_stream(stream)
            event.record(stream)
        return event


def _event() -> torch.cuda.Event:
    return torch.cuda.Event()  # type: ignore[no-untyped-call]


def _stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


_devices: Final[list[Device]] = [Cuda()]


def add_device(device: Device) -> None:
    """Stage the tensors of one more accelerator."""
    _devices.append(device)


def device_of(tensors: Sequence[torch.Tensor], call: str) -> Device | None:
    """The device whose memory holds all of these tensors; None if they are in host memory.

    Raises TypeError if they are in both, on two devices, or in memory that nothing here can stage; then it names them.
    """
    owners = {id(device): device for device in _devices for tensor in tensors if device.owns(tensor)}
    if not owners:
        return None
    found = {str(tensor.device) for tensor in tensors}
    (device, *others) = owners.values()
    if others or len(found) > 1 or not all(map(device.owns, tensors)):
        raise TypeError(f"mlt {call}: tensors on {', '.join(sorted(found))} in one call; move them to one device")
    for tensor in tensors:
        if tensor.layout != torch.strided:
            raise TypeError(f"mlt {call}: a {tensor.layout} tensor on {tensor.device} cannot be sent; make it dense")
    return device


def leaves(tree: Any) -> list[torch.Tensor]:
    """The tensors of nested lists, in order."""
    if isinstance(tree, torch.Tensor):
        return [tree]
    found = []
    for part in tree:
        if isinstance(part, torch.Tensor):
            found.append(part)
        else:
            found += leaves(part)
    return found


@dataclass(frozen=True)
class Part:
    """Elements ``start`` to ``stop`` of a tensor in the order of its indices, which is that of its mirror's memory."""

    tensor: torch.Tensor
    start: int
    stop: int


def pieces_of(tensors: Sequence[torch.Tensor], piece_bytes: int = PIECE_BYTES) -> list[tuple[Any, Any, Any]]:
    """Lists of what to stage together, each with the tensors that it reads and writes: first what is not cut, then a
    piece each. Shares the tensors' memory.

    All ranks must cut alike, and their tensors may differ in strides, so only type and size count. A strided tensor is
    copied as a whole, before its first piece and after its last.
    """
    whole = [tensor for tensor in tensors if tensor.nbytes <= piece_bytes]
    pieces: list[tuple[Any, Any, Any]] = [(whole, whole, whole)] if whole else []
    for tensor in tensors:
        count = max(piece_bytes // tensor.element_size(), 1)
        if tensor.nbytes <= piece_bytes:
            continue
        if tensor.is_contiguous():
            pieces += [([piece], [piece], [piece]) for piece in torch.split(tensor.detach().view(-1), count)]
            continue
        for start in range(0, tensor.numel(), count):
            stop = min(start + count, tensor.numel())
            read = [tensor] if start == 0 else []
            pieces.append(([Part(tensor, start, stop)], read, [tensor] if stop == tensor.numel() else []))
    return pieces


@dataclass
class Staged:
    """Tensors of a call and their mirrors in host memory, equal for equal tensors."""

    device: Device
    begun: Any
    _mirrors: dict[int, Pair] = field(default_factory=dict)  # by identity of the device's tensor
    _alive: list[torch.Tensor] = field(default_factory=list)  # whose identity must not be used again

    def mirror(self, tree: Any) -> Any:
        """Nested lists with each tensor replaced by its mirror, and each part by the mirror's."""
        if isinstance(tree, Part):
            return self.mirror(tree.tensor).view(-1)[tree.start : tree.stop]
        if not isinstance(tree, torch.Tensor):
            return [self.mirror(part) for part in tree]
        if id(tree) not in self._mirrors:
            self._mirrors[id(tree)] = (self.device.host_like(tree), tree.detach())
            self._alive.append(tree)
        return self._mirrors[id(tree)][0]

    def to_host(self, tree: Any) -> Any:
        """Start copying these tensors to their mirrors; returns an event."""
        pairs = self._pairs(tree)
        return self.device.copy_to_host(pairs, self.begun) if pairs else self.begun

    def back(self, tree: Any) -> Any:
        """Start copying the mirrors back; returns an event."""
        pairs = self._pairs(tree)
        return self.device.copy_back(pairs, self.begun) if pairs else self.begun

    def _pairs(self, tree: Any) -> list[Pair]:
        self.mirror(tree)
        return [pair for tensor in leaves(tree) if (pair := self._mirrors[id(tensor)])[1].numel()]
