"""``GradientExchange``: averages the gradients of one step over all ranks, as one call of Python whatever their number.

Gradients with a loss bound travel in buckets of consecutive variables, which are the layers: the first bucket holds the
variables that were made first, the front layers, and is sent first. Exact gradients are one operation. The program's
groups, if it has some, take the place of both.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from mlt.tensorflow.arrays import Array, Arrays
from mlt.tensorflow.collectives import check_sparse
from mlt.tensorflow.compression import Compression, Compressor
from mlt.tensorflow.stateful import call, graph_name

import tensorflow as tf
from mlt._named import elements, job
from mlt._named.controller import Handle, RejectedError
from mlt._named.gradients import BoundedLossState, agree_on, layers_of, listed, settle
from mlt._named.groups import positions
from mlt._named.operations import start
from mlt._named.process_sets import ProcessSet, global_process_set
from mlt._named.reduce_ops import Average, ReduceOp, check_lossy
from mlt._named.requests import Spec


class GradientExchange:
    """Averages lists of gradients. ``name``: the same on all ranks.

    ``op``, ``compression`` (of dense gradients), ``gradient_predivide_factor``, ``sparse_as_dense``, ``process_set``:
    as Horovod's ``DistributedOptimizer`` has them. ``groups``: a number of groups, or lists of variables, whose
    gradients are one operation each. ``state``: the loss that is allowed. ``local_variables``: whose gradients stay
    this rank's, divided by the number of ranks if ``scale_local_gradients``; ``local`` has their ids.
    """

    def __init__(
        self,
        name: str,
        *,
        op: ReduceOp = Average,
        compression: type[Compressor] = Compression.none,
        gradient_predivide_factor: float = 1.0,
        sparse_as_dense: bool = False,
        groups: int | Sequence[Sequence[Any]] | None = None,
        process_set: ProcessSet = global_process_set,
        state: BoundedLossState | None = None,
        local_variables: Iterable[Any] = (),
        scale_local_gradients: bool = True,
    ) -> None:
        if gradient_predivide_factor != 1.0 and op != Average:
            raise ValueError("gradient_predivide_factor not supported with op != Average")
        self.name = name
        self.state = BoundedLossState(0.0) if state is None else state
        self._op = op
        self._compression = compression
        self._predivide = float(gradient_predivide_factor)
        self._sparse_as_dense = sparse_as_dense
        self._groups = groups
        self._process_set = process_set
        self.local = set(map(id, local_variables))
        self._scale_local = scale_local_gradients
        if not self.state.is_exact:
            check_lossy(op)

    def __call__(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """The averages, in order: tensors, ``tf.IndexedSlices``, and None where there was None.

        ``variables``: one for each gradient; those that are not local are the same on all ranks. Raises
        HorovodInternalError, in a graph one of ``tf.errors``.
        """
        reduced = list(gradients)
        shared = [number for number, one in enumerate(variables) if id(one) not in self.local]
        averages = self._averages([gradients[number] for number in shared], [variables[number] for number in shared])
        for number, one in zip(shared, averages, strict=True):
            reduced[number] = one
        if self._scale_local:
            for number in set(range(len(reduced))).difference(shared):
                reduced[number] = _quotient(reduced[number], self._size())
        return reduced

    def _averages(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """The averages of gradients that are not local."""
        given = [
            tf.convert_to_tensor(one) if self._sparse_as_dense and isinstance(one, tf.IndexedSlices) else one
            for one in gradients
        ]
        places = [number for number, one in enumerate(given) if one is not None]
        sparse = [number for number in places if isinstance(given[number], tf.IndexedSlices)]
        dense = [number for number in places if number not in sparse]
        if sparse:
            check_sparse(self._op)
        pairs = [self._compression.compress(tf.convert_to_tensor(given[number])) for number in dense]
        tensors = [tensor for tensor, _ in pairs]
        tensors += [part for number in sparse for part in (given[number].values, given[number].indices)]
        shapes = [tensor.shape for tensor, _ in pairs]
        shapes += [tf.TensorShape([None]).concatenate(one.shape[1:]) for one in tensors[len(dense) :]]
        name = graph_name(self.name) or self.name
        labels = [label_of(variables[number], number) for number in places]
        groups = self._positions([id(variables[number]) for number in dense])

        is_sparse = tuple(places.index(number) for number in sparse)

        def run(*arrays: Array) -> list[Array]:
            return self._run(name, arrays[: len(dense)], arrays[len(dense) :], is_sparse, groups, labels)

        reduced = call(run, tensors, shapes, f"a gradient of {self.name!r}")
        for number, tensor, (_, ctx) in zip(dense, reduced, pairs, strict=False):
            given[number] = self._compression.decompress(tensor, ctx)
        for position, number in enumerate(sparse):
            values, indices = reduced[len(dense) + 2 * position :][:2]
            given[number] = tf.IndexedSlices(values, indices, dense_shape=given[number].dense_shape)
        return given

    def _run(
        self,
        name: str,
        dense: Sequence[Array],
        sparse: Sequence[Array],
        is_sparse: tuple[int, ...],
        groups: Sequence[Sequence[int]],
        labels: Sequence[str],
    ) -> list[Array]:
        """Start everything, then wait: layers from the front, then all sparse gradients.

        ``is_sparse``: positions of the sparse gradients among all, which ``labels`` name. ``groups``: positions of
        dense gradients that the program wants in one operation.
        """
        limit = None if self.state.is_exact else self.state.bucket_bytes
        layers = layers_of([one.nbytes for one in dense], limit, groups)
        buckets = [Arrays([dense[position] for position in layer]) for layer in layers]
        scales = {}
        if self._predivide != 1.0:
            scales = {"prescale": 1.0 / self._predivide, "postscale": self._predivide}
        handles: list[Handle] = []
        rows: list[Handle] = []
        gathered: list[Arrays] = []
        specs = _in_order(Arrays(dense).specs, Arrays(sparse[::2]).specs, is_sparse)
        try:
            if len(buckets) + bool(sparse) > 1 or not buckets:
                compared = _without_rows(specs, is_sparse)
                agree_on(name, compared, self._process_set, layers=len(buckets), sparse=is_sparse)
            for layer, held in enumerate(buckets):
                handles.append(
                    start(
                        "allreduce",
                        held,
                        name if len(buckets) == 1 else f"{name}/layer {layer} of {len(buckets)}",
                        self._process_set,
                        self._op,
                        bound=self.state.bound(layer),
                        layer=layer,
                        layers=len(buckets),
                        sparse=is_sparse,
                        **scales,
                    )
                )
            if sparse:
                gathered.append(Arrays(sparse))
                rows.append(start("allgather", gathered[0], f"{name}/sparse", self._process_set))
            self.state.exchange(handles)
            for handle in rows:
                handle.wait()
        except RejectedError as error:
            # One that the ranks disagree about; the others end as well, before the caller may continue.
            settle([*handles, *rows])
            raise RejectedError(f"{error}; {listed(specs, labels)}") from None
        reduced = {
            position: array
            for layer, held in zip(layers, buckets, strict=True)
            for position, array in zip(layer, held.results(), strict=True)
        }
        results = [reduced[position] for position in range(len(dense))]
        for held in gathered:
            parts = held.results()
            if self._op == Average:
                for values in parts[::2]:
                    _divide(values, self._size())
            results += parts
        return results

    def _size(self) -> int:
        return len(job.ranks_of(self._process_set.process_set_id))

    def _positions(self, keys: Sequence[int]) -> list[list[int]]:
        """The program's groups as positions in ``keys``, ids of variables."""
        if self._groups is None:
            return []
        groups = self._groups
        return positions(groups if isinstance(groups, int) else [[id(one) for one in group] for group in groups], keys)


def label_of(variable: Any, number: int) -> str:
    """The name of a variable in errors."""
    return str(getattr(variable, "path", None) or getattr(variable, "name", None) or f"number {number}")


def is_variable(one: Any) -> bool:
    """Whether this is a variable, of TensorFlow or Keras."""
    return isinstance(one, tf.Variable) or isinstance(getattr(one, "value", None), tf.Variable)


def _quotient(gradient: Any, size: int) -> Any:
    """A gradient, if it is one, divided by the number of ranks."""
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(gradient.values / size, gradient.indices, dense_shape=gradient.dense_shape)
    return None if gradient is None else gradient / size


def _divide(values: Array, size: int) -> None:
    (spec,) = Arrays([values]).specs
    elements.scale(values.reshape(-1).view("uint8"), spec[0], 1.0 / size)


def _in_order(dense: Sequence[Spec], sparse: Sequence[Spec], is_sparse: Sequence[int]) -> list[Spec]:
    """The gradients in the variables' order. ``is_sparse``: positions of the sparse ones."""
    specs = list(dense)
    for position, spec in zip(is_sparse, sparse, strict=True):
        specs.insert(position, spec)
    return specs


def _without_rows(specs: Sequence[Spec], is_sparse: Sequence[int]) -> list[Spec]:
    """The same without the number of rows of sparse gradients, which differs between ranks and steps."""
    return [
        (dtype, (0, *shape[1:]) if position in is_sparse else shape) for position, (dtype, shape) in enumerate(specs)
    ]
