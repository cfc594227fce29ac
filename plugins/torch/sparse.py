"""Sums of sparse tensors in host memory (COO layout), as gathers of their elements."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mlt.torch.reductions import as_bytes

import torch

if TYPE_CHECKING:
    from mlt import Context, Operation


def sparse_all_reduce(
    context: Context,
    tensor: torch.Tensor,
    *,
    rank: int,
    how: Mapping[str, Any],
    started: Callable[[Operation], None],
) -> None:
    """Replace a sparse tensor by the sum of all ranks'; each rank may hold other elements.

    ``rank``: in the group. ``how``: ranks, stream and timeout of a collective; the timeout limits the whole sum.
    ``started``: gets each collective. Raises ValueError on every rank if the ranks' shapes differ.
    """
    deadline = time.monotonic() + how["timeout"]

    def all_gather(outputs: Sequence[torch.Tensor], own: torch.Tensor) -> None:
        left = max(deadline - time.monotonic(), 1e-3)
        parts, given = [as_bytes(output) for output in outputs], as_bytes(own.contiguous())
        operation = context.post_all_to_all(parts, [given] * len(parts), **{**how, "timeout": left})
        started(operation)
        operation.wait()

    own = tensor.detach().coalesce()
    shape = torch.tensor([own.sparse_dim(), own._nnz(), *own.shape])
    shapes = [torch.zeros_like(shape) for _ in how["ranks"]]
    all_gather(shapes, shape)
    for other, found in enumerate(shapes):
        if found[0] != shape[0] or not torch.equal(found[2:], shape[2:]):
            raise ValueError(
                f"the sparse tensor of rank {other} has shape {found[2:].tolist()} with {int(found[0])} sparse "
                f"dimensions, that of rank {rank} {shape[2:].tolist()} with {int(shape[0])}"
            )
    counts = [int(found[1]) for found in shapes]
    indices = [torch.empty((own.sparse_dim(), count), dtype=torch.int64) for count in counts]
    all_gather(indices, own.indices())
    values = [torch.empty((count, *own.values().shape[1:]), dtype=own.dtype) for count in counts]
    all_gather(values, own.values())
    total = torch.sparse_coo_tensor(torch.cat(indices, dim=1), torch.cat(values), own.shape)
    tensor.copy_(total.coalesce())
