"""Push-pull: the sum or the average of a tensor over all workers; and the tensor of one worker for all."""

from __future__ import annotations

from typing import Any

from mlt.tensorflow import collectives
from mlt.tensorflow.compression import Compression, Compressor
from mlt.tensorflow.stateful import graph_name

from mlt._named import job
from mlt._named.byteps import check_name, reduction
from mlt._named.reduce_ops import ReduceOp
from mlt._named.requests import GLOBAL_SET, Kind


def push_pull(
    tensor: Any,
    scope: str = "",
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    op: ReduceOp | str | None = None,
    enable_async: bool = False,
) -> Any:
    """The average of a tensor over all workers, or with ``op`` Sum (or ``average`` False) its sum; of the same type.

    Its gradient is averaged or summed in the same way. ``scope`` begins the tensor's name. ``tf.IndexedSlices`` are
    gathered: the rows of all workers, divided by their number. Averages of integers are truncated toward zero. Raises
    HorovodInternalError if the workers disagree (in a graph: one of ``tf.errors`` with its text), ValueError for
    ``enable_async``, another ``op``, and a ``device_dense`` or ``device_sparse`` other than the CPU.

    >>> bps.push_pull(tf.constant([2.0, 4.0])).numpy().tolist()  # of one worker
    [2.0, 4.0]
    """
    if enable_async:
        raise ValueError(
            "enable_async=True is not possible: push_pull waits for all workers; leave it out. DistributedOptimizer "
            "trains asynchronously, with BYTEPS_ENABLE_ASYNC=1"
        )
    return collectives.allreduce(
        tensor,
        device_dense=device_dense,
        device_sparse=device_sparse,
        compression=compression,
        op=reduction(op, average),
        name=name_of("allreduce", scope),
    )


def broadcast(tensor: Any, root_rank: int, scope: str = "", name: str | None = None, is_variable: bool = True) -> Any:
    """The tensor of ``root_rank``; that of the other workers, a variable or not, stays as it is.

    ``scope`` and ``name`` are the name that all workers give it, in any order; without both, the order counts.
    """
    return collectives.broadcast(tensor, root_rank, name=name_of("broadcast", scope, name))


def name_of(kind: Kind, scope: str, name: str | None = None) -> str | None:
    """A tensor's name: the program's, or one that begins with ``scope``; None without either."""
    if name is not None:
        return f"{scope}{check_name(name)}"
    if not check_name(scope):
        return None
    unique = graph_name(f"{scope}{kind}")  # in a graph, in which several tensors may have one scope
    return f"{scope}{job.controller().name(kind, GLOBAL_SET)}" if unique is None else unique
