"""Push-pull: the sum or the average of a tensor over all workers."""

from __future__ import annotations

import threading
import time

from mlt.torch.horovod.compression import Compression, Compressor
from mlt.torch.horovod.handles import poll, synchronize
from mlt.torch.horovod.reduce import allreduce, start_allreduce

import torch
from mlt._named.process_sets import global_process_set
from mlt._named.reduce_ops import Average, Sum

__all__ = [
    "byteps_torch_set_num_grads",
    "declare",
    "poll",
    "push_pull",
    "push_pull_async",
    "push_pull_async_inplace",
    "push_pull_group_sync_inplace",
    "push_pull_inplace",
    "synchronize",
]

_declared: dict[str, int] = {}
_lock = threading.Lock()


class Speed:
    """Bytes given to push-pull, and since when."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._bytes = 0
        self._since = time.time()

    def add(self, tensor: torch.Tensor) -> None:
        with self._lock:
            self._bytes += tensor.nbytes

    def take(self) -> tuple[int, float]:
        """Now in milliseconds, and MB/s since the last call."""
        with self._lock:
            now = time.time()
            rate = self._bytes / 1e6 / max(now - self._since, 1e-9)
            self._bytes, self._since = 0, now
        return round(now * 1000), rate


speed = Speed()


def declare(name: str) -> int:
    """The key of a tensor's name: names count from 0 in the order of their first declaration. Not required."""
    with _lock:
        return _declared.setdefault(name, len(_declared))


def push_pull(
    tensor: torch.Tensor,
    average: bool = True,
    name: str | None = None,
    version: int = 0,
    priority: int = 0,
    compression: type[Compressor] = Compression.none,
) -> torch.Tensor:
    """The average or sum over all workers; its gradient is averaged or summed in the same way.

    ``version`` is not used, ``priority`` only by the asynchronous forms.
    """
    speed.add(tensor)
    return allreduce(tensor, name=name, compression=compression, op=Average if average else Sum)


def push_pull_async(
    tensor: torch.Tensor, average: bool = True, name: str | None = None, version: int = 0, priority: int = 0
) -> int:
    """Start a push-pull into a new tensor. Of those ready at the same time, the highest ``priority`` is first."""
    return _start(tensor, None, average, name, priority)


def push_pull_async_inplace(
    tensor: torch.Tensor, average: bool = True, name: str | None = None, version: int = 0, priority: int = 0
) -> int:
    """``push_pull_async`` in place."""
    return _start(tensor, tensor, average, name, priority)


def push_pull_inplace(
    tensor: torch.Tensor, average: bool = True, name: str | None = None, version: int = 0, priority: int = 0
) -> torch.Tensor:
    """Replace a tensor by the average or sum over all workers."""
    result: torch.Tensor = synchronize(push_pull_async_inplace(tensor, average, name, version, priority))
    return result


def push_pull_group_sync_inplace(
    tensor: torch.Tensor, average: bool = True, name: str | None = None, version: int = 0, priority: int = 0
) -> tuple[int, int]:
    """``push_pull_async_inplace``: its handle, and the number of declared tensors."""
    return push_pull_async_inplace(tensor, average, name, version, priority), len(_declared)


def byteps_torch_set_num_grads(num_grads: int) -> None:
    """Nothing to do: whatever is ready is summed together."""


def _start(tensor: torch.Tensor, target: torch.Tensor | None, average: bool, name: str | None, priority: int) -> int:
    speed.add(tensor)
    if name is not None:
        declare(name)
    return start_allreduce(
        [tensor],
        None if target is None else [target],
        name,
        Average if average else Sum,
        1.0,
        1.0,
        global_process_set,
        grouped=False,
        priority=priority,
    )
