"""The operations on tensors: each as a handle (``_async``), in place (``_``), grouped, and differentiable.

An operation without a name gets one from a count, so all ranks call those in the same order. Tensors may lie on a GPU;
they then travel by way of host memory.
"""

from __future__ import annotations

import itertools
import threading
import warnings
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any, Final

from mlt.torch.horovod import job
from mlt.torch.horovod.compression import Compression, Compressor
from mlt.torch.horovod.process_sets import ProcessSet, global_process_set, set_id
from mlt.torch.loss import check_bound, current_bound

import torch
from mlt._named.controller import Handle
from mlt._named.elements import Bytes
from mlt._named.requests import Kind, Request


class ReduceOp(IntEnum):
    """How the ranks' elements are combined. The numbers are Horovod's."""

    Average = 0
    Sum = 1
    Adasum = 2
    Min = 3
    Max = 4
    Product = 5


Average: Final = ReduceOp.Average
Sum: Final = ReduceOp.Sum
Adasum: Final = ReduceOp.Adasum
Min: Final = ReduceOp.Min
Max: Final = ReduceOp.Max
Product: Final = ReduceOp.Product

_DTYPES: Final = {
    torch.bool: "bool",
    torch.uint8: "uint8",
    torch.int8: "int8",
    torch.int16: "int16",
    torch.int32: "int32",
    torch.int64: "int64",
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
    torch.float32: "float32",
    torch.float64: "float64",
}

_results: dict[int, tuple[Handle, Callable[[], Any]]] = {}
_numbers = itertools.count()
_lock = threading.Lock()


class _Tensors:
    """The tensors of one operation. ``targets``: where the results go; None: new tensors."""

    def __init__(self, tensors: Sequence[torch.Tensor], targets: Sequence[torch.Tensor] | None) -> None:
        self._given = tensors
        self._targets = targets
        self._inputs = [one.detach().cpu().contiguous() for one in tensors]
        self._outputs: list[torch.Tensor | None] = [None] * len(tensors)

    def input(self, index: int) -> Bytes:
        return _bytes(self._inputs[index])

    def allocate(self, index: int, shape: tuple[int, ...]) -> Bytes:
        # In place, if the tensor needs no copy.
        output = self._inputs[index] if self._targets is not None else None
        if output is None or output.shape != shape:
            output = torch.empty(shape, dtype=self._inputs[index].dtype)
        self._outputs[index] = output
        return _bytes(output)

    def result(self, index: int) -> torch.Tensor:
        """The result, on the device of the input; the target if it was given."""
        output = self._outputs[index]
        assert output is not None
        if self._targets is None:
            return output.to(self._given[index].device)
        target = self._targets[index]
        if target.data_ptr() != output.data_ptr() or target.device != output.device:
            with torch.no_grad():
                target.copy_(output)
        return target


def _bytes(tensor: torch.Tensor) -> Bytes:
    array: Bytes = tensor.reshape(-1).view(torch.uint8).numpy()
    return array


def _submit(
    kind: Kind,
    tensors: Sequence[torch.Tensor],
    name: str | None,
    process_set: ProcessSet,
    *,
    targets: Sequence[torch.Tensor] | None = None,
    result: Callable[[_Tensors, Handle], Any],
    op: ReduceOp | None = None,
    **options: Any,
) -> int:
    """Start an operation; its handle."""
    own = job.controller()
    number = set_id(process_set)
    specs = []
    for tensor in tensors:
        if tensor.dtype not in _DTYPES or tensor.layout is not torch.strided:
            raise ValueError(f"Tensor type {tensor.type()} is not supported.")
        specs.append((_DTYPES[tensor.dtype], tuple(tensor.shape)))
    held = _Tensors(tensors, targets)
    request = Request(
        kind,
        name if name is not None else own.name(kind, number),
        tuple(specs),
        set_id=number,
        op="" if op is None else ReduceOp(op).name.lower(),
        **options,
    )
    handle = own.submit(request, held)
    with _lock:
        key = next(_numbers)
        _results[key] = handle, lambda: result(held, handle)
    return key


def poll(handle: int) -> bool:
    """Whether the operation has completed or failed: ``synchronize`` then returns at once."""
    with _lock:
        found = _results.get(handle)
    return found is None or found[0].done()


def synchronize(handle: int) -> Any:
    """Wait for an operation; its result. None if this was called for the handle before.

    Raises HorovodInternalError if the operation failed.
    """
    with _lock:
        found = _results.pop(handle, None)
    if found is None:
        return None
    found[0].wait()
    return found[1]()


def forget_handles() -> None:
    """After ``shutdown``: no handle is valid."""
    with _lock:
        _results.clear()


def _apply(function: type[torch.autograd.Function], *arguments: Any) -> Any:
    """The result of a differentiable function; torch declares no types for it."""
    apply: Any = function.apply
    return apply(*arguments)


def _one(tensors: _Tensors, _: Handle) -> torch.Tensor:
    return tensors.result(0)


def _all(count: int) -> Callable[[_Tensors, Handle], list[torch.Tensor]]:
    return lambda tensors, _: [tensors.result(index) for index in range(count)]


def chosen_op(op: ReduceOp | None, average: bool | None) -> ReduceOp:
    """The reduction from the arguments ``op`` and, as long ago, ``average``."""
    if op is not None:
        if average is not None:
            raise ValueError("The op parameter supersedes average. Please provide only one of them.")
        return op
    if average is None:
        return Average
    warnings.warn(
        "Parameter `average` has been replaced with `op` and will be removed in v1.0", DeprecationWarning, stacklevel=3
    )
    return Average if average else Sum


# Allreduce


def _allreduce(
    tensors: Sequence[torch.Tensor],
    targets: Sequence[torch.Tensor] | None,
    name: str | None,
    op: ReduceOp,
    prescale_factor: float,
    postscale_factor: float,
    process_set: ProcessSet,
    *,
    grouped: bool,
    loss_bound: float | None = None,
) -> int:
    bound = current_bound() if loss_bound is None else check_bound(loss_bound)
    if op == Adasum and process_set is not global_process_set:
        raise NotImplementedError("Adasum does not support non-global process sets yet.")
    return _submit(
        "allreduce",
        tensors,
        name,
        process_set,
        targets=targets,
        result=_all(len(tensors)) if grouped else _one,
        op=op,
        prescale=float(prescale_factor),
        postscale=float(postscale_factor),
        bound=bound,
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
    return _allreduce([tensor], None, name, chosen, prescale_factor, postscale_factor, process_set, grouped=False)


def allreduce_async_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    *,
    loss_bound: float | None = None,
) -> int:
    """``allreduce_async`` in place. ``loss_bound``: of this sum, instead of that of ``mlt.torch.lossy``."""
    chosen = chosen_op(op, average)
    return _allreduce(
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
        handle = _allreduce(tensors, None, name, op, prescale_factor, postscale_factor, process_set, grouped=grouped)
        reduced = synchronize(handle)
        return tuple(reduced) if grouped else reduced

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        op, prescale_factor, postscale_factor, process_set = ctx.arguments
        handle = _allreduce(gradients, None, None, op, prescale_factor, postscale_factor, process_set, grouped=True)
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
    reduced: Any = _apply(_Allreduce, name, chosen, prescale_factor, postscale_factor, process_set, False, compressed)
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
    return _allreduce(list(tensors), None, name, chosen, prescale_factor, postscale_factor, process_set, grouped=True)


def grouped_allreduce_async_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    *,
    loss_bound: float | None = None,
) -> int:
    """``grouped_allreduce_async`` in place."""
    chosen = chosen_op(op, average)
    own = list(tensors)
    return _allreduce(
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
    reduced: Any = _apply(
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
    indices = allgather_async(tensor._indices().transpose(0, 1).contiguous(), f"{name}.indices", process_set)
    values = allgather_async(tensor._values(), f"{name}.values", process_set)

    def result() -> torch.Tensor:
        all_values, all_indices = synchronize(values), synchronize(indices)
        if op == Average:
            all_values = all_values / len(job.ranks_of(process_set.process_set_id))
        return torch.sparse_coo_tensor(all_indices.transpose(0, 1), all_values, tensor.size())

    return result


# Allgather


def _allgather(tensors: Sequence[torch.Tensor], name: str | None, process_set: ProcessSet, *, grouped: bool) -> int:
    return _submit("allgather", tensors, name, process_set, result=_all(len(tensors)) if grouped else _one)


def allgather_async(tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set) -> int:
    """Start concatenating the ranks' tensors along the first dimension, which may differ between ranks."""
    return _allgather([tensor], name, process_set, grouped=False)


def grouped_allgather_async(
    tensors: Sequence[torch.Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """``allgather_async`` of a list of tensors together."""
    return _allgather(list(tensors), name, process_set, grouped=True)


class _Allgather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, name: str | None, process_set: ProcessSet, *tensors: torch.Tensor) -> Any:
        ctx.process_set = process_set
        handle = _allgather(tensors, name, process_set, grouped=True)
        with _lock:
            own = _results[handle][0]
        gathered = synchronize(handle)
        assert own.answer is not None
        position = process_set.rank() or 0
        ctx.parts = [(sum(rows[:position]), rows[position]) for rows in own.answer.rows]
        return tuple(gathered)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        handle = _allreduce(gradients, None, None, Average, 1.0, 1.0, ctx.process_set, grouped=True)
        averaged = synchronize(handle)
        parts = [one.narrow(0, start, rows) for one, (start, rows) in zip(averaged, ctx.parts, strict=True)]
        return (None, None, *parts)


def allgather(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """All ranks' tensors, concatenated. The gradient is this rank's part of the average of all ranks' gradients."""
    gathered: Any = _apply(_Allgather, name, process_set, tensor)
    result: torch.Tensor = gathered[0]
    return result


def grouped_allgather(
    tensors: Sequence[torch.Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[torch.Tensor]:
    """``allgather`` of a list of tensors together."""
    gathered: Any = _apply(_Allgather, name, process_set, *tensors)
    return list(gathered)


# Broadcast


def _broadcast(
    tensor: torch.Tensor, target: torch.Tensor | None, root_rank: int, name: str | None, process_set: ProcessSet
) -> int:
    targets = None if target is None else [target]
    return _submit("broadcast", [tensor], name, process_set, targets=targets, result=_one, root=root_rank)


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
        handle = _allreduce(gradients, None, None, Average, 1.0, 1.0, process_set, grouped=False)
        averaged = synchronize(handle)
        return (averaged if job.controller().rank == root_rank else torch.zeros_like(averaged)), None, None, None


def broadcast(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """The tensor of ``root_rank``. The gradient is the average of all ranks' gradients there, and zero elsewhere."""
    result: Any = _apply(_Broadcast, tensor, root_rank, name, process_set)
    sent: torch.Tensor = result
    return sent


# Alltoall


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

    def result(tensors: _Tensors, handle: Handle) -> tuple[torch.Tensor, torch.Tensor]:
        assert handle.answer is not None
        position = process_set.rank() or 0
        received = [rows[position] for rows in handle.answer.rows]
        return tensors.result(0), torch.tensor(received, dtype=kind, device=device)

    rows = None if splits is None else tuple(splits.tolist())
    return _submit("alltoall", [tensor], name, process_set, result=result, splits=rows)


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
    result: Any = _apply(_Alltoall, tensor, splits, name, process_set)
    output, received = result
    return output if splits is None else (output, received)


# Reducescatter


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
    return _submit(
        "reducescatter",
        tensors,
        name,
        process_set,
        result=_all(len(tensors)) if grouped else _one,
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
        handle = _allgather(scaled, None, ctx.process_set, grouped=True)
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
    reduced: Any = _apply(
        _Reducescatter, name, op, process_set, prescale_factor, postscale_factor, *(tensor for tensor, _ in compressed)
    )
    return [compression.decompress(tensor, ctx) for tensor, (_, ctx) in zip(reduced, compressed, strict=True)]


# Without tensors


def join(device: int = -1) -> int:
    """This rank has no more data: until all ranks have joined, it contributes nothing to the others' allreduces.

    Returns the rank that joined last. ``device`` is ignored.
    """
    return job.controller().join()


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Wait until all ranks of the process set have called it."""
    synchronize(_submit("barrier", [], None, process_set, result=lambda tensors, handle: None))
