"""Collectives on MXNet's arrays, matched by name.

Every call waits until MXNet's engine has computed its arrays, and then for its result: whatever the program calls next
sees it. A call without a name gets one from a count, so all ranks make those calls in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mlt.mxnet.arrays import Arrays

import mxnet as mx
from mlt._gradients.loss import current_bound
from mlt._named import job
from mlt._named.operations import start
from mlt._named.process_sets import ProcessSet, global_process_set
from mlt._named.reduce_ops import Average, ReduceOp, chosen_op
from mlt._named.requests import Kind
from mlt._shared.loss_bounds import loss_bound_of


def _collective(
    kind: Kind,
    arrays: Sequence[mx.nd.NDArray],
    name: str | None,
    process_set: ProcessSet,
    op: ReduceOp | None = None,
    *,
    in_place: bool = False,
    **options: Any,
) -> list[mx.nd.NDArray]:
    """One operation on arrays."""
    if not arrays:
        return []
    held = Arrays(arrays, in_place=in_place)
    start(kind, held, name, process_set, op, **options).wait()
    return held.results()


def _reduce(
    arrays: Sequence[mx.nd.NDArray],
    average: bool | None,
    name: str | None,
    priority: int,
    prescale_factor: float,
    postscale_factor: float,
    process_set: ProcessSet,
    op: ReduceOp | None,
    loss_bound: float | str | None,
    *,
    in_place: bool,
) -> list[mx.nd.NDArray]:
    return _collective(
        "allreduce",
        arrays,
        name,
        process_set,
        chosen_op(op, average),
        in_place=in_place,
        priority=priority,
        prescale=float(prescale_factor),
        postscale=float(postscale_factor),
        bound=current_bound() if loss_bound is None else loss_bound_of(loss_bound),
    )


def allreduce(
    tensor: mx.nd.NDArray,
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: ReduceOp | None = None,
    *,
    loss_bound: float | str | None = None,
) -> mx.nd.NDArray:
    """The reduction of an array of any shape over all ranks; by default their average.

    ``priority``: of operations that are ready at the same time, the highest is first. ``loss_bound``: the fraction of a
    floating-point sum that may be lost at each hop, the same on all ranks; None: that of ``hvd.lossy`` where this is
    called. Raises HorovodInternalError if the ranks disagree or the job has ended, TypeError for sparse arrays and
    element types that cannot be sent.

    >>> hvd.allreduce(mx.nd.array([2.0, 4.0])).asnumpy().tolist()  # of one rank
    [2.0, 4.0]
    """
    (result,) = grouped_allreduce(
        [tensor], average, name, priority, prescale_factor, postscale_factor, process_set, op, loss_bound=loss_bound
    )
    return result


def allreduce_(
    tensor: mx.nd.NDArray,
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: ReduceOp | None = None,
    *,
    loss_bound: float | str | None = None,
) -> mx.nd.NDArray:
    """``allreduce`` in place, without a copy if the array is larger than 128 KiB; returns the array."""
    (result,) = grouped_allreduce_(
        [tensor], average, name, priority, prescale_factor, postscale_factor, process_set, op, loss_bound=loss_bound
    )
    return result


def grouped_allreduce(
    tensors: Sequence[mx.nd.NDArray],
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: ReduceOp | None = None,
    *,
    loss_bound: float | str | None = None,
) -> list[mx.nd.NDArray]:
    """The reductions of a list of arrays, as one operation. As ``allreduce``."""
    return _reduce(
        tensors, average, name, priority, prescale_factor, postscale_factor, process_set, op, loss_bound, in_place=False
    )


def grouped_allreduce_(
    tensors: Sequence[mx.nd.NDArray],
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: ReduceOp | None = None,
    *,
    loss_bound: float | str | None = None,
) -> list[mx.nd.NDArray]:
    """``grouped_allreduce`` in place; returns the arrays."""
    return _reduce(
        tensors, average, name, priority, prescale_factor, postscale_factor, process_set, op, loss_bound, in_place=True
    )


def allgather(
    tensor: mx.nd.NDArray, name: str | None = None, priority: int = 0, process_set: ProcessSet = global_process_set
) -> mx.nd.NDArray:
    """All ranks' arrays, concatenated along the first dimension, which may differ between ranks.

    Raises HorovodInternalError if the other dimensions differ.
    """
    (result,) = grouped_allgather([tensor], name, priority, process_set)
    return result


def grouped_allgather(
    tensors: Sequence[mx.nd.NDArray],
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> list[mx.nd.NDArray]:
    """``allgather`` of a list of arrays, as one operation."""
    return _collective("allgather", tensors, name, process_set, priority=priority)


def broadcast(
    tensor: mx.nd.NDArray,
    root_rank: int,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> mx.nd.NDArray:
    """The array of ``root_rank`` (a rank of the job). Shape and element type are the same on all ranks."""
    (result,) = _collective("broadcast", [tensor], name, process_set, root=root_rank, priority=priority)
    return result


def broadcast_(
    tensor: mx.nd.NDArray,
    root_rank: int,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> mx.nd.NDArray:
    """``broadcast`` in place; returns the array."""
    (result,) = grouped_broadcast_([tensor], root_rank, name, priority, process_set)
    return result


def grouped_broadcast_(
    tensors: Sequence[mx.nd.NDArray],
    root_rank: int,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> list[mx.nd.NDArray]:
    """``broadcast_`` of a list of arrays, as one operation. Horovod has no such function."""
    return _collective("broadcast", tensors, name, process_set, in_place=True, root=root_rank, priority=priority)


def alltoall(
    tensor: mx.nd.NDArray,
    splits: Any = None,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Send rows of the first dimension to each rank, and concatenate those that come; with ``splits`` also their
    numbers.

    ``splits``: rows for each rank, an array of integers or a list; None: equal parts, and the result is the array
    alone. Raises HorovodInternalError if they do not fit the rows.
    """
    rows = None if splits is None else tuple(map(int, splits.asnumpy() if hasattr(splits, "asnumpy") else splits))
    held = Arrays([tensor])
    answer = start("alltoall", held, name, process_set, splits=rows, priority=priority).wait()
    (result,) = held.results()
    if rows is None:
        return result
    ranks = list(job.ranks_of(process_set.process_set_id))
    own = ranks.index(job.controller().rank)
    return result, mx.nd.array([sent[own] for sent in answer.rows], dtype="int32")


def reducescatter(
    tensor: mx.nd.NDArray,
    op: ReduceOp = Average,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> mx.nd.NDArray:
    """This rank's rows of the reduction of an array; the first ranks get one more if they differ."""
    (result,) = grouped_reducescatter([tensor], op, name, priority, process_set, prescale_factor, postscale_factor)
    return result


def grouped_reducescatter(
    tensors: Sequence[mx.nd.NDArray],
    op: ReduceOp = Average,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[mx.nd.NDArray]:
    """``reducescatter`` of a list of arrays, as one operation."""
    return _collective(
        "reducescatter",
        tensors,
        name,
        process_set,
        op,
        priority=priority,
        prescale=float(prescale_factor),
        postscale=float(postscale_factor),
    )
