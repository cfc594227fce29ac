"""An accelerator that this machine need not have: its memory is the host's, and its streams are threads that lag.

Work that is queued on a stream runs a little late, so that a call that does not wait for it reads or sends old data. It
says nothing about CUDA itself; tests/device/check_cuda.py does, on a machine with a GPU.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from mlt.torch.staging import Pair

LAG_SECONDS = 0.003


class Stream:
    """Runs what is queued, in order; work a little late."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        threading.Thread(target=self._serve, daemon=True).start()

    def enqueue(self, work: Callable[[], object]) -> None:
        self._queue.put(partial(time.sleep, LAG_SECONDS))
        self._queue.put(work)

    def wait_for(self, event: threading.Event) -> None:
        self._queue.put(event.wait)

    def record(self) -> threading.Event:
        event = threading.Event()
        self._queue.put(event.set)
        return event

    def _serve(self) -> None:
        while True:
            self._queue.get()()


class StandIn:
    """A device whose tensors are those that ``tensor`` made. ``compute`` is the current stream of every thread."""

    def __init__(self) -> None:
        self.compute = Stream()
        self._out, self._back = Stream(), Stream()
        self._memory: dict[int, torch.Tensor] = {}

    def tensor(self, data: torch.Tensor) -> torch.Tensor:
        """A copy of ``data`` in the device's memory."""
        copy = data.clone()
        self._memory[copy.untyped_storage().data_ptr()] = copy
        return copy

    def host(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor's contents when the current stream has done its work."""
        self.compute.record().wait()
        return tensor.detach().clone()

    def owns(self, tensor: torch.Tensor) -> bool:
        return tensor.layout == torch.strided and tensor.untyped_storage().data_ptr() in self._memory

    def host_like(self, tensor: torch.Tensor) -> torch.Tensor:
        return torch.full(tensor.shape, 77, dtype=tensor.dtype)

    def mark(self, tensor: torch.Tensor) -> threading.Event:
        return self.compute.record()

    def copy_to_host(self, pairs: Sequence[Pair], after: Any) -> threading.Event:
        self._out.wait_for(self._back.record())
        return self._copy(self._out, [(host, tensor) for host, tensor in pairs], after)

    def copy_back(self, pairs: Sequence[Pair], after: Any) -> threading.Event:
        return self._copy(self._back, [(tensor, host) for host, tensor in pairs], after)

    def synchronize(self, event: Any) -> None:
        event.wait()

    def is_reached(self, event: Any) -> bool:
        return bool(event.is_set())

    def wait(self, event: Any) -> None:
        self.compute.wait_for(event)

    def future(self, tensors: Sequence[torch.Tensor]) -> Any:
        return torch.futures.Future()

    def complete(self, set_result: Callable[[], None], event: Any) -> None:
        event.wait()
        set_result()

    @staticmethod
    def _copy(stream: Stream, copies: Sequence[Pair], after: Any) -> threading.Event:
        def copy() -> None:
            with torch.no_grad():
                for target, source in copies:
                    target.copy_(source)

        stream.wait_for(after)
        stream.enqueue(copy)
        return stream.record()
