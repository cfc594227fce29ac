"""Handles: operations in progress, by number, and what their tensors become.

An operation without a name gets one from a count, so all ranks call those in the same order. Tensors may lie on a GPU;
they then travel by way of host memory.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from mlt._named import job
from mlt._named.controller import Handle
from mlt._named.elements import Bytes
from mlt._named.process_sets import ProcessSet, set_id
from mlt._named.reduce_ops import ReduceOp
from mlt._named.requests import Kind, Request

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
job.at_stop(_results.clear)  # after shutdown no handle is valid


class Tensors:
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


def submit(
    kind: Kind,
    tensors: Sequence[torch.Tensor],
    name: str | None,
    process_set: ProcessSet,
    *,
    targets: Sequence[torch.Tensor] | None = None,
    result: Callable[[Tensors, Handle], Any],
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
    held = Tensors(tensors, targets)
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


def apply(function: type[torch.autograd.Function], *arguments: Any) -> Any:
    """The result of a differentiable function; torch declares no types for it."""
    apply: Any = function.apply
    return apply(*arguments)


def one_result(tensors: Tensors, _: Handle) -> torch.Tensor:
    return tensors.result(0)


def all_results(count: int) -> Callable[[Tensors, Handle], list[torch.Tensor]]:
    return lambda tensors, _: [tensors.result(index) for index in range(count)]


def handle_of(number: int) -> Handle:
    """The controller's handle of an operation that was not waited for."""
    with _lock:
        return _results[number][0]
