"""Push-pull: the sum or the average of a tensor over all workers."""

from __future__ import annotations

from mlt.torch.horovod.compression import Compression, Compressor
from mlt.torch.horovod.handles import poll, synchronize
from mlt.torch.horovod.reduce import allreduce, start_allreduce

import torch
from mlt._named.byteps import declare, declared, send_order
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
    return allreduce(tensor, name=name, compression=compression, op=Average if average else Sum)


def push_pull_async(
    tensor: torch.Tensor, average: bool = True, name: str | None = None, version: int = 0, priority: int = 0
) -> int:
    """Start a push-pull into a new tensor. Of those ready at the same time, the highest ``priority`` is first, then the
    tensor that was declared first."""
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
    return push_pull_async_inplace(tensor, average, name, version, priority), declared()


def byteps_torch_set_num_grads(num_grads_: int) -> None:
    """Nothing to do: whatever is ready is summed together."""


def _start(tensor: torch.Tensor, target: torch.Tensor | None, average: bool, name: str | None, priority: int) -> int:
    return start_allreduce(
        [tensor],
        None if target is None else [target],
        name,
        Average if average else Sum,
        1.0,
        1.0,
        global_process_set,
        grouped=False,
        priority=send_order(name, priority),
    )
