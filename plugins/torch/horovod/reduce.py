"""Allreduce: of one tensor, of a list, in place, differentiable, and of sparse tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mlt.torch.horovod.compression import Compression, Compressor
from mlt.torch.horovod.handles import all_results, apply, one_result, submit, synchronize
from mlt.torch.horovod.movement import grouped_allgather_async

import torch
from mlt._gradients.loss import current_bound
from mlt._named import job
from mlt._named.process_sets import ProcessSet, global_process_set
from mlt._named.reduce_ops import Adasum, Average, ReduceOp, Sum, chosen_op
from mlt._shared.loss_bounds import loss_bound_of


def start_allreduce(
    tensors: Sequence[torch.Tensor],
    targets: Sequence[torch.Tensor] | None,
    name: str | None,
    op: ReduceOp,
    prescale_factor: float,
    postscale_factor: float,
    process_set: ProcessSet,
    *,
    grouped: bool,
    loss_bound: float | str | None = None,
    priority: int = 0,
    layer: int = 0,
    layers: int = 1,
) -> int:
    """The handle of an allreduce. ``targets``: where the results go. ``loss_bound`` None: that of ``lossy``.

    ``priority``: of those that are ready at the same time, the highest is carried out first. ``layer`` of ``layers``:
    position in the model, 0 in front; the transport sends front layers first.
    """
    bound = current_bound() if loss_bound is None else loss_bound_of(loss_bound)
    if op == Adasum and process_set is not global_process_set:
        raise NotImplementedError("Adasum does not support non-global process sets yet.")
    return submit(
        "allreduce",
        tensors,
        name,
        process_set,
        targets=targets,
        result=all_results(len(tensors)) if grouped else one_result,
        op=op,
        prescale=float(prescale_factor),
        postscale=float(postscale_factor),
        bound=bound,
        priority=priority,
        layer=layer,
        layers=layers,
    )


def allreduce_async(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start reducing a tensor over all ranks; by default to the average."""
    chosen = chosen_op(op, average)
    return start_allreduce([tensor], None, name, chosen, prescale_factor, postscale_factor, process_set, grouped=False)


def allreduce_async_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    *,
    loss_bound: float | str | None = None,
) -> int:
    """``allreduce_async`` in place. ``loss_bound``: of this sum, instead of that of ``mlt.torch.lossy``."""
    chosen = chosen_op(op, average)
    return start_allreduce(
        [tensor],
        [tensor],
        name,
        chosen,
        prescale_factor,
        postscale_factor,
        process_set,
        grouped=False,
        loss_bound=loss_bound,
    )


def allreduce_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Reduce a tensor over all ranks, in place."""
    chosen = chosen_op(op, average)
    reduced: torch.Tensor = synchronize(
        allreduce_async_(tensor, None, name, chosen, prescale_factor, postscale_factor, process_set)
    )
    return reduced


class _Allreduce(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        name: str | None,
        op: ReduceOp,
        prescale_factor: float,
        postscale_factor: float,
        process_set: ProcessSet,
        grouped: bool,
        *tensors: torch.Tensor,
    ) -> Any:
        ctx.arguments = op, prescale_factor, postscale_factor, process_set
        handle = start_allreduce(
            tensors, None, name, op, prescale_factor, postscale_factor, process_set, grouped=grouped
        )
        reduced = synchronize(handle)
        return tuple(reduced) if grouped else reduced

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        op, prescale_factor, postscale_factor, process_set = ctx.arguments
        handle = start_allreduce(
            gradients, None, None, op, prescale_factor, postscale_factor, process_set, grouped=True
        )
        return (None, None, None, None, None, None, *synchronize(handle))


def allreduce(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """The reduction of a tensor over all ranks. Its gradient is reduced in the same way."""
    chosen = chosen_op(op, average)
    compressed, ctx = compression.compress(tensor)
    reduced: Any = apply(_Allreduce, name, chosen, prescale_factor, postscale_factor, process_set, False, compressed)
    return compression.decompress(reduced, ctx)


def grouped_allreduce_async(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start reducing a list of tensors together: none begins before all ranks have submitted all."""
    chosen = chosen_op(op, average)
    return start_allreduce(
        list(tensors), None, name, chosen, prescale_factor, postscale_factor, process_set, grouped=True
    )


def grouped_allreduce_async_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    *,
    loss_bound: float | str | None = None,
) -> int:
    """``grouped_allreduce_async`` in place."""
    chosen = chosen_op(op, average)
    own = list(tensors)
    return start_allreduce(
        own,
        own,
        name,
        chosen,
        prescale_factor,
        postscale_factor,
        process_set,
        grouped=True,
        loss_bound=loss_bound,
    )


def grouped_allreduce_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """Reduce a list of tensors together, in place."""
    chosen = chosen_op(op, average)
    reduced: list[torch.Tensor] = synchronize(
        grouped_allreduce_async_(tensors, None, name, chosen, prescale_factor, postscale_factor, process_set)
    )
    return reduced


def grouped_allreduce(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """The reductions of a list of tensors; differentiable."""
    chosen = chosen_op(op, average)
    compressed = [compression.compress(tensor) for tensor in tensors]
    reduced: Any = apply(
        _Allreduce,
        name,
        chosen,
        prescale_factor,
        postscale_factor,
        process_set,
        True,
        *(tensor for tensor, _ in compressed),
    )
    return [compression.decompress(tensor, ctx) for tensor, (_, ctx) in zip(reduced, compressed, strict=True)]


def sparse_allreduce_async(
    tensor: torch.Tensor, name: str, op: ReduceOp, process_set: ProcessSet = global_process_set
) -> Callable[[], torch.Tensor]:
    """Start reducing a sparse tensor (COO) by gathering indices and values; call what is returned for the result."""
    if op not in (Average, Sum):
        raise ValueError("a sparse tensor has Sum and Average only")
    # One operation by the name that a dense tensor would have: a rank on which it is dense is an error of all.
    parts = [tensor._indices().transpose(0, 1).contiguous(), tensor._values()]
    gathered = grouped_allgather_async(parts, name, process_set)

    def result() -> torch.Tensor:
        all_indices, all_values = synchronize(gathered)
        if op == Average:
            all_values = all_values / len(job.ranks_of(process_set.process_set_id))
        return torch.sparse_coo_tensor(all_indices.transpose(0, 1), all_values, tensor.size())

    return result
