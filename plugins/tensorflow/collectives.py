"""Collectives on TensorFlow's tensors, eager and in ``tf.function``, each differentiable; matched by name.

A call without a name gets one: in a graph from the graph, so that ranks may retrace at different times; in eager
execution from a count, so that all ranks make those calls in the same order. Every call waits for its result.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mlt.tensorflow.arrays import Array, Arrays
from mlt.tensorflow.compression import Compression, Compressor
from mlt.tensorflow.placement import check_devices
from mlt.tensorflow.stateful import call, graph_name

import tensorflow as tf
from mlt._gradients.loss import current_bound
from mlt._named import job
from mlt._named.operations import start
from mlt._named.process_sets import ProcessSet, global_process_set
from mlt._named.reduce_ops import Average, ReduceOp, Sum, chosen_op
from mlt._named.requests import Kind
from mlt._shared.loss_bounds import loss_bound_of


def _size(process_set: ProcessSet) -> int:
    return len(job.ranks_of(process_set.process_set_id))


def _collective(
    kind: Kind,
    tensors: Sequence[tf.Tensor],
    name: str | None,
    process_set: ProcessSet,
    shapes: Sequence[Any],
    **options: Any,
) -> list[tf.Tensor]:
    """One operation on tensors, as one call of Python."""
    own_name = graph_name(f"mlt_{kind}") if name is None else name

    def run(*arrays: Array) -> list[Array]:
        held = Arrays(arrays)
        start(kind, held, own_name, process_set, **options).wait()
        return held.results()

    return call(run, tensors, shapes, f"{kind} of {name or 'a tensor'}")


def _tensors(values: Sequence[Any]) -> list[tf.Tensor]:
    return [tf.convert_to_tensor(one) for one in values]


def _any_rows(tensor: tf.Tensor) -> Any:
    """The shape of a result whose first dimension other ranks determine."""
    return tf.TensorShape([None]).concatenate(tensor.shape[1:]) if tensor.shape.rank else tensor.shape


def _reduce(
    tensors: Sequence[tf.Tensor],
    name: str | None,
    op: ReduceOp,
    prescale_factor: float,
    postscale_factor: float,
    process_set: ProcessSet,
    bound: float,
) -> list[tf.Tensor]:
    if op == ReduceOp.Adasum and process_set is not global_process_set:
        raise NotImplementedError("Adasum does not support non-global process sets yet.")

    def reduced(values: Sequence[tf.Tensor], label: str | None) -> list[tf.Tensor]:
        return _collective(
            "allreduce",
            values,
            label,
            process_set,
            [one.shape for one in values],
            op=op,
            prescale=float(prescale_factor),
            postscale=float(postscale_factor),
            bound=bound,
        )

    @tf.custom_gradient
    def differentiable(*values: tf.Tensor) -> Any:
        return reduced(values, name), lambda *gradients: reduced(gradients, None)

    return list(differentiable(*tensors))


def allreduce(
    tensor: Any,
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    *,
    loss_bound: float | str | None = None,
) -> Any:
    """The reduction of a tensor of any shape over all ranks; by default their average. Its gradient is reduced too.

    ``tf.IndexedSlices`` are gathered, without loss: all ranks' rows, for Average divided by the number of ranks, and
    times both factors. ``loss_bound``: the fraction of a floating-point sum that may be lost at each hop, the same on
    all ranks; None: that of ``hvd.lossy`` where this is called, or traced. ``name`` is taken as it is, in every name
    scope, so ``ignore_name_scope`` makes no difference. Raises HorovodInternalError if the ranks disagree or the job
    has ended (in a graph: one of ``tf.errors`` with its text), TypeError for an element type that cannot be sent,
    ValueError for a ``device_dense`` or ``device_sparse`` other than the CPU.

    >>> hvd.allreduce(tf.constant([2.0, 4.0])).numpy().tolist()  # of one rank
    [2.0, 4.0]
    """
    check_devices(device_dense=device_dense, device_sparse=device_sparse)
    chosen = chosen_op(op, average)
    if isinstance(tensor, tf.IndexedSlices):
        factor = float(prescale_factor) * float(postscale_factor)
        return _reduce_slices(tensor, name, chosen, factor, compression, process_set)
    (result,) = grouped_allreduce(
        [tensor],
        compression=compression,
        op=chosen,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        name=name,
        process_set=process_set,
        loss_bound=loss_bound,
    )
    return result


def check_sparse(op: ReduceOp) -> None:
    """Raise NotImplementedError for a reduction that IndexedSlices do not have."""
    if op not in (Average, Sum):
        raise NotImplementedError(f"IndexedSlices have Average and Sum, not {op.name}: give sparse_as_dense=True")


def _reduce_slices(
    slices: tf.IndexedSlices,
    name: str | None,
    op: ReduceOp,
    factor: float,
    compression: type[Compressor],
    process_set: ProcessSet,
) -> tf.IndexedSlices:
    check_sparse(op)
    compressed, ctx = compression.compress(slices.values)
    values, indices = grouped_allgather([compressed, slices.indices], name=name, process_set=process_set)
    values = compression.decompress(values, ctx)
    if op == Average:
        values /= tf.cast(_size(process_set), values.dtype)
    if factor != 1.0:
        values *= tf.cast(factor, values.dtype)
    return tf.IndexedSlices(values, indices, dense_shape=slices.dense_shape)


def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    name: str | None = None,
    *,
    loss_bound: float | str | None = None,
) -> list[tf.Tensor]:
    """The reductions of a list of tensors, as one operation. As ``allreduce``."""
    check_devices(device_dense=device_dense, device_sparse=device_sparse)
    chosen = chosen_op(op, average)
    bound = current_bound() if loss_bound is None else loss_bound_of(loss_bound)
    pairs = [compression.compress(one) for one in _tensors(tensors)]
    reduced = _reduce(
        [tensor for tensor, _ in pairs], name, chosen, prescale_factor, postscale_factor, process_set, bound
    )
    return [compression.decompress(one, ctx) for one, (_, ctx) in zip(reduced, pairs, strict=True)]


def allgather(
    tensor: Any,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> tf.Tensor:
    """All ranks' tensors, concatenated along the first dimension, which may differ between ranks.

    The gradient is this rank's rows of the sum of all ranks' gradients. Raises HorovodInternalError if the other
    dimensions differ.
    """
    (result,) = grouped_allgather([tensor], name=name, process_set=process_set)
    return result


def grouped_allgather(
    tensors: Sequence[Any],
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> list[tf.Tensor]:
    """``allgather`` of a list of tensors, as one operation."""

    @tf.custom_gradient
    def differentiable(*values: tf.Tensor) -> Any:
        gathered = _collective("allgather", values, name, process_set, [_any_rows(one) for one in values])

        def gradient(*gradients: tf.Tensor) -> list[tf.Tensor]:
            summed = grouped_allreduce(gradients, op=Sum, process_set=process_set, loss_bound=0.0)
            rows = allgather(tf.stack([tf.shape(one)[0] for one in values])[None], process_set=process_set)
            starts = tf.cumsum(rows, exclusive=True)[_position(process_set)]
            own = rows[_position(process_set)]
            return [one[starts[i] : starts[i] + own[i]] for i, one in enumerate(summed)]

        return gathered, gradient

    return list(differentiable(*_tensors(tensors)))


def _position(process_set: ProcessSet) -> int:
    return list(job.ranks_of(process_set.process_set_id)).index(job.controller().rank)


def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> tf.Tensor:
    """The tensor of ``root_rank`` (a rank of the job). Shape and element type are the same on all ranks.

    The gradient is the sum of all ranks' at ``root_rank``, zeros elsewhere.
    """
    (result,) = broadcast_tensors([tensor], root_rank, name, process_set)
    return result


def broadcast_tensors(
    tensors: Sequence[Any], root_rank: int, name: str | None, process_set: ProcessSet = global_process_set
) -> list[tf.Tensor]:
    """``broadcast`` of a list of tensors, as one operation."""

    @tf.custom_gradient
    def differentiable(*values: tf.Tensor) -> Any:
        shapes = [one.shape for one in values]
        results = _collective("broadcast", values, name, process_set, shapes, root=root_rank)

        def gradient(*gradients: tf.Tensor) -> list[tf.Tensor]:
            summed = grouped_allreduce(gradients, op=Sum, process_set=process_set, loss_bound=0.0)
            return summed if job.controller().rank == root_rank else [tf.zeros_like(one) for one in summed]

        return results, gradient

    return list(differentiable(*_tensors(tensors)))


def alltoall(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Send rows of the first dimension to each rank, and concatenate those that come; with ``splits`` also their
    numbers.

    ``splits``: rows for each rank; None: equal parts, and the result is the tensor alone. Raises HorovodInternalError
    if they do not fit the rows.
    """
    value = tf.convert_to_tensor(tensor)
    given = None if splits is None else tf.convert_to_tensor(splits, tf.int32)

    @tf.custom_gradient
    def differentiable(rows: tf.Tensor, counts: tf.Tensor) -> Any:
        received, received_counts = _exchange_rows(rows, counts, name, process_set)

        def gradient(upstream: tf.Tensor, _: Any) -> Any:
            return _exchange_rows(upstream, received_counts, None, process_set)[0], None

        return (received, received_counts), gradient

    if given is None:
        size = _size(process_set)
        length = tf.shape(value)[0]
        with tf.control_dependencies(
            [tf.debugging.assert_equal(length % size, 0, f"alltoall: {size} ranks do not divide the rows; give splits")]
        ):
            equal = tf.repeat(length // size, size)
        return differentiable(value, equal)[0]
    return differentiable(value, given)


def _exchange_rows(
    rows: tf.Tensor, counts: tf.Tensor, name: str | None, process_set: ProcessSet
) -> tuple[tf.Tensor, tf.Tensor]:
    own_name = graph_name("mlt_alltoall") if name is None else name

    def run(rows: Array, counts: Array) -> list[Array]:
        held = Arrays([rows])
        handle = start("alltoall", held, own_name, process_set, splits=tuple(map(int, counts)))
        received = [sent[_position(process_set)] for sent in handle.wait().rows]
        numbers = Arrays([counts])
        numbers.allocate(0, (len(received),))
        (taken,) = numbers.results()
        taken[...] = received
        return [*held.results(), taken]

    received, taken = call(run, [rows, counts], [_any_rows(rows), counts.shape], f"alltoall of {name or 'a tensor'}")
    return received, taken


def reducescatter(
    tensor: Any,
    device_dense: str = "",
    compression: type[Compressor] = Compression.none,
    op: ReduceOp = Average,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> tf.Tensor:
    """This rank's rows of the reduction of a tensor; the first ranks get one more if they differ."""
    (result,) = grouped_reducescatter(
        [tensor],
        device_dense=device_dense,
        compression=compression,
        op=op,
        name=name,
        process_set=process_set,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
    )
    return result


def grouped_reducescatter(
    tensors: Sequence[Any],
    device_dense: str = "",
    compression: type[Compressor] = Compression.none,
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    ignore_name_scope: bool = False,
    name: str | None = None,
) -> list[tf.Tensor]:
    """``reducescatter`` of a list of tensors, as one operation."""
    check_devices(device_dense=device_dense)
    factor = float(prescale_factor) * float(postscale_factor)

    @tf.custom_gradient
    def differentiable(*values: tf.Tensor) -> Any:
        results = _collective(
            "reducescatter",
            values,
            name,
            process_set,
            [_any_rows(one) for one in values],
            op=op,
            prescale=float(prescale_factor),
            postscale=float(postscale_factor),
        )

        def gradient(*gradients: tf.Tensor) -> list[tf.Tensor]:
            scale = factor * (_size(process_set) if op == Sum else 1)
            return grouped_allgather([one * tf.cast(scale, one.dtype) for one in gradients], process_set=process_set)

        return results, gradient

    pairs = [compression.compress(one) for one in _tensors(tensors)]
    reduced = differentiable(*(tensor for tensor, _ in pairs))
    return [compression.decompress(one, ctx) for one, (_, ctx) in zip(reduced, pairs, strict=True)]
