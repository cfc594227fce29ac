"""Sums of sparse tensors in host memory (COO layout), as gathers of their elements."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mlt.torch.reductions import as_elements
from mlt.torch.work import CallQueue

import torch

if TYPE_CHECKING:
    from mlt import Context, Operation


@dataclass(frozen=True)
class SparseSum:
    """``total``: of all ranks, coalesced. ``bytes``: of this rank's own indices and values; ``repairs``: segments that
    were sent again."""

    total: torch.Tensor
    bytes: int
    repairs: int


def sparse_all_reduce(
    context: Context,
    tensor: torch.Tensor,
    *,
    rank: int,
    how: Mapping[str, Any],
    started: Callable[[Operation], None],
) -> SparseSum:
    """Return the sum of all ranks' sparse tensors, exact; each rank may hold other elements.

    ``rank``: in the group. ``how``: ranks, stream and timeout of a collective; the timeout limits the whole sum, None:
    each of its collectives by the context's own. ``started``: gets each collective. Raises ValueError on every rank if
    the ranks' shapes differ.
    """
    deadline = None if how["timeout"] is None else time.monotonic() + how["timeout"]
    repairs = 0

    def all_gather(outputs: Sequence[torch.Tensor], own: torch.Tensor) -> None:
        nonlocal repairs
        left = None if deadline is None else max(deadline - time.monotonic(), 1e-3)
        parts, given = [as_elements(output) for output in outputs], as_elements(own.contiguous())
        operation = context.post_all_to_all(parts, [given] * len(parts), **{**how, "timeout": left})
        started(operation)
        repairs += operation.wait().repairs

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
    return SparseSum(total.coalesce(), own.indices().nbytes + own.values().nbytes, repairs)


class SparseAverages:
    """Exact averages of sparse tensors over ``ranks`` of a context, one after another on a thread of their own.

    ``stream``: of their collectives alone, because other calls do not wait for them; every rank starts them in the same
    order. The thread starts with the first one.
    """

    def __init__(self, context: Context, ranks: Sequence[int], stream: int) -> None:
        self._context = context
        self._rank = list(ranks).index(context.rank)
        self._how: dict[str, Any] = {"ranks": ranks, "stream": stream, "timeout": None}
        self._queue = CallQueue("mlt-hook-sparse")

    def start(
        self,
        tensor: torch.Tensor,
        started: Callable[[Operation], None],
        done: Callable[[SparseSum], None],
        failed: Callable[[Exception], None],
    ) -> None:
        """Average ``tensor``, then call ``done`` with the average as total, or ``failed``, on the thread, which gives
        each collective to ``started``."""

        found: list[SparseSum] = []

        def average() -> None:
            # Divided before they are added, as by DDP itself: sums of half precision could overflow.
            share = tensor.detach().div(len(self._how["ranks"]))
            found.append(sparse_all_reduce(self._context, share, rank=self._rank, how=self._how, started=started))

        self._queue.submit(_Average(done, failed), average, found)


class _Average:
    """One average in the queue: what follows it, ``done`` or ``failed``."""

    def __init__(self, done: Callable[[SparseSum], None], failed: Callable[[Exception], None]) -> None:
        self._done = done
        self._failed = failed
        self._error: Exception | None = None

    def run(self, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as error:
            self._error = error

    def publish(self, result: Any) -> None:
        if self._error is not None:
            self._failed(self._error)
        else:
            self._done(result[0])
