"""Calls that move tensors and compute nothing: allgather, broadcast, alltoall; each differentiable."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mlt.torch.horovod.handles import Tensors, all_results, apply, handle_of, one_result, submit, synchronize

import torch
from mlt._named import job
from mlt._named.controller import Handle
from mlt._named.process_sets import ProcessSet, global_process_set
from mlt._named.reduce_ops import Average


def _average(gradients: Sequence[torch.Tensor], process_set: ProcessSet) -> list[torch.Tensor]:
    """The averages of gradients over the ranks."""
    averages: list[torch.Tensor] = synchronize(
        submit("allreduce", gradients, None, process_set, result=all_results(len(gradients)), op=Average)
    )
    return averages


def start_allgather(
    tensors: Sequence[torch.Tensor], name: str | None, process_set: ProcessSet, *, grouped: bool
) -> int:
    """The handle of an allgather."""
    return submit("allgather", tensors, name, process_set, result=all_results(len(tensors)) if grouped else one_result)


def allgather_async(tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set) -> int:
    """Start concatenating the ranks' tensors along the first dimension, which may differ between ranks."""
    return start_allgather([tensor], name, process_set, grouped=False)


def grouped_allgather_async(
    tensors: Sequence[torch.Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """``allgather_async`` of a list of tensors together."""
    return start_allgather(list(tensors), name, process_set, grouped=True)


class _Allgather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, name: str | None, process_set: ProcessSet, *tensors: torch.Tensor) -> Any:
        ctx.process_set = process_set
        handle = start_allgather(tensors, name, process_set, grouped=True)
        own = handle_of(handle)
        gathered = synchronize(handle)
        assert own.answer is not None
        position = process_set.rank() or 0
        ctx.parts = [(sum(rows[:position]), rows[position]) for rows in own.answer.rows]
        return tuple(gathered)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        averaged = _average(gradients, ctx.process_set)
        parts = [one.narrow(0, start, rows) for one, (start, rows) in zip(averaged, ctx.parts, strict=True)]
        return (None, None, *parts)


def allgather(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """All ranks' tensors, concatenated. The gradient is this rank's part of the average of all ranks' gradients."""
    gathered: Any = apply(_Allgather, name, process_set, tensor)
    result: torch.Tensor = gathered[0]
    return result


def grouped_allgather(
    tensors: Sequence[torch.Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[torch.Tensor]:
    """``allgather`` of a list of tensors together."""
    gathered: Any = apply(_Allgather, name, process_set, *tensors)
    return list(gathered)


def _broadcast(
    tensor: torch.Tensor, target: torch.Tensor | None, root_rank: int, name: str | None, process_set: ProcessSet
) -> int:
    targets = None if target is None else [target]
    return submit("broadcast", [tensor], name, process_set, targets=targets, result=one_result, root=root_rank)


def broadcast_async(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Start sending the tensor of ``root_rank`` (of the job, also in a process set) to all ranks."""
    return _broadcast(tensor, None, root_rank, name, process_set)


def broadcast_async_(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """``broadcast_async`` in place."""
    return _broadcast(tensor, tensor, root_rank, name, process_set)


def broadcast_(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """Replace the tensor by that of ``root_rank``."""
    result: torch.Tensor = synchronize(broadcast_async_(tensor, root_rank, name, process_set))
    return result


class _Broadcast(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, root_rank: int, name: str | None, process_set: ProcessSet) -> Any:
        ctx.arguments = root_rank, process_set
        return synchronize(broadcast_async(tensor, root_rank, name, process_set))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        root_rank, process_set = ctx.arguments
        (averaged,) = _average(gradients, process_set)
        return (averaged if job.controller().rank == root_rank else torch.zeros_like(averaged)), None, None, None


def broadcast(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """The tensor of ``root_rank``. The gradient is the average of all ranks' gradients there, and zero elsewhere."""
    result: Any = apply(_Broadcast, tensor, root_rank, name, process_set)
    sent: torch.Tensor = result
    return sent


def alltoall_async(
    tensor: torch.Tensor,
    splits: torch.Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start sending rows of the tensor to each rank: ``splits`` of them, or equal parts; see ``alltoall``."""
    if splits is not None and not isinstance(splits, torch.Tensor):
        splits = torch.tensor(list(splits), dtype=torch.int32)
    if splits is not None and (splits.dtype not in (torch.int32, torch.int64) or splits.dim() != 1):
        raise ValueError("alltoall expects splits to be a vector of integers of 32 or 64 bits.")
    kind, device = (torch.int32, None) if splits is None else (splits.dtype, splits.device)

    def result(tensors: Tensors, handle: Handle) -> tuple[torch.Tensor, torch.Tensor]:
        assert handle.answer is not None
        position = process_set.rank() or 0
        received = [rows[position] for rows in handle.answer.rows]
        return tensors.result(0), torch.tensor(received, dtype=kind, device=device)

    rows = None if splits is None else tuple(splits.tolist())
    return submit("alltoall", [tensor], name, process_set, result=result, splits=rows)


class _Alltoall(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, splits: Any, name: str | None, process_set: ProcessSet) -> Any:
        output, received = synchronize(alltoall_async(tensor, splits, name, process_set))
        ctx.arguments = received, process_set
        ctx.mark_non_differentiable(received)
        return output, received

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        received, process_set = ctx.arguments
        gradient, _ = synchronize(alltoall_async(gradients[0], received, None, process_set))
        return gradient, None, None, None


def alltoall(
    tensor: torch.Tensor,
    splits: torch.Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """The rows that all ranks sent to this one, and with ``splits`` also how many each sent; differentiable."""
    result: Any = apply(_Alltoall, tensor, splits, name, process_set)
    output, received = result
    return output if splits is None else (output, received)
