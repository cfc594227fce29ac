"""Reducescatter: each rank gets its rows of the reduction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mlt.torch.horovod.compression import Compression, Compressor
from mlt.torch.horovod.handles import all_results, apply, one_result, submit, synchronize
from mlt.torch.horovod.movement import start_allgather

import torch
from mlt._named import job
from mlt._named.process_sets import ProcessSet, global_process_set
from mlt._named.reduce_ops import Average, ReduceOp, Sum


def _reducescatter(
    tensors: Sequence[torch.Tensor],
    name: str | None,
    op: ReduceOp,
    process_set: ProcessSet,
    prescale_factor: float,
    postscale_factor: float,
    *,
    grouped: bool,
) -> int:
    return submit(
        "reducescatter",
        tensors,
        name,
        process_set,
        result=all_results(len(tensors)) if grouped else one_result,
        op=op,
        prescale=float(prescale_factor),
        postscale=float(postscale_factor),
    )


def reducescatter_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Start reducing a tensor of which each rank gets its rows; the first ranks get one more if they differ."""
    return _reducescatter([tensor], name, op, process_set, prescale_factor, postscale_factor, grouped=False)


def grouped_reducescatter_async(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """``reducescatter_async`` of a list of tensors together."""
    return _reducescatter(list(tensors), name, op, process_set, prescale_factor, postscale_factor, grouped=True)


class _Reducescatter(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        name: str | None,
        op: ReduceOp,
        process_set: ProcessSet,
        prescale_factor: float,
        postscale_factor: float,
        *tensors: torch.Tensor,
    ) -> Any:
        ctx.process_set = process_set
        ctx.factor = prescale_factor * postscale_factor
        if op == Sum:
            ctx.factor *= len(job.ranks_of(process_set.process_set_id))
        handle = _reducescatter(tensors, name, op, process_set, prescale_factor, postscale_factor, grouped=True)
        return tuple(synchronize(handle))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        scaled = [one * ctx.factor for one in gradients]
        handle = start_allgather(scaled, None, ctx.process_set, grouped=True)
        return (None, None, None, None, None, *synchronize(handle))


def reducescatter(
    tensor: torch.Tensor,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> torch.Tensor:
    """This rank's rows of the reduction of a tensor; differentiable."""
    (result,) = grouped_reducescatter([tensor], name, compression, op, process_set, prescale_factor, postscale_factor)
    return result


def grouped_reducescatter(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[torch.Tensor]:
    """``reducescatter`` of a list of tensors together."""
    compressed = [compression.compress(tensor) for tensor in tensors]
    reduced: Any = apply(
        _Reducescatter, name, op, process_set, prescale_factor, postscale_factor, *(tensor for tensor, _ in compressed)
    )
    return [compression.decompress(tensor, ctx) for tensor, (_, ctx) in zip(reduced, compressed, strict=True)]
