"""Collectives of a group of ranks, as methods of ``Context``.

Every member calls the same collectives with the same ``ranks`` and ``stream``, in the same order; several may be in
progress at once.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ParamSpec, cast

from mlt import _core, norms
from mlt._core import Reduction
from mlt._shared.argument_types import explains_types
from mlt._shared.loss_bounds import loss_bound_of
from mlt._shared.similar_names import did_you_mean
from mlt.errors import CancelledError, ConfigError, InvalidBufferError
from mlt.norms import NormCheck
from mlt.operation import Completion, Kind, Operation
from mlt.options import times

if TYPE_CHECKING:
    from mlt.context import Context
    from mlt.job.configuration import JobConfig


# Names of an all-reduce's algorithms, of a broadcast's and a reduce's, and of an all-gather's and a reduce-scatter's.
ALGORITHMS = ("direct", "central", "ring", "halving", "two-level")
ROOTED_ALGORITHMS = ("direct", "chain", "two-level")
PARTED_ALGORITHMS = ("direct", "two-level")

_P = ParamSpec("_P")


def _then_wait(post: Callable[_P, Operation]) -> Callable[_P, Completion]:
    """The method that starts a collective by ``post`` and waits for it: the same arguments, another name and result."""
    name = post.__name__.removeprefix("post_")

    @functools.wraps(post)
    def wait(*args: _P.args, **kwargs: _P.kwargs) -> Completion:
        return post(*args, **kwargs).wait()

    wait.__name__, wait.__qualname__ = name, f"GroupCollectives.{name}"
    wait.__doc__ = f"``{post.__name__}``, which has an example, then wait; raises the TransferError of a failed one."
    wait.__annotations__ = {**post.__annotations__, "return": "Completion"}
    wait.__signature__ = inspect.signature(post).replace(return_annotation="Completion")  # type: ignore[attr-defined]
    return wait


class GroupCollectives:
    """Base class of ``Context``. ``post_*`` starts a collective; the plain name also waits for its completion."""

    _config: JobConfig
    _workers: tuple[int, ...]
    _engine: _core.Engine

    @explains_types
    def post_all_reduce(
        self,
        tensor: Any,
        *,
        op: Reduction = Reduction.MEAN,
        loss_bound: float | str = 0.0,
        lossy_results: bool = False,
        ranks: Sequence[int] | None = None,
        stream: int = 0,
        layer: int = 0,
        layers: int = 1,
        timeout: float | None = None,
        dtype: str | None = None,
        check_finite: bool = False,
        algorithm: str | None = None,
    ) -> Operation:
        """Start replacing ``tensor`` by the reduction of all ranks' tensors: by default their mean.

        ``op``: how the elements are combined. Every element type has SUM, MIN, MAX and PRODUCT; floating point has
        MEAN; integers and bool have AND, OR and XOR, bit by bit. Integers are exact: sums and products wrap. A sum of
        bool is "or", its product "and". float16 and bfloat16 are computed in float32, and rounded once if the tensor is
        small, else at each of the ring's ``n - 1`` hops, of the ``log2 n`` of halving, or of the rounds of two levels.

        ``tensor`` may be a list of tensors of one element type, which are carried as one, in the order of the list: one
        collective instead of one for each, for two copies of the data (docs/collectives.md says when that pays). Those
        of several tensors change only if it succeeds. The ranks compare the sum of their sizes, not each.

        ``algorithm``: "direct", "central", "ring", "halving" or "two-level" instead of the one that fits the sizes of
        tensor and group (docs/collectives.md); the same on every rank. Only the ring loses anything, whatever the
        bound. "two-level" needs two or more hosts with equally many ranks of the group, next to each other in it.

        Ring algorithm: the sums go around the ring once, then the results. Only sums may be lost, up to ``loss_bound``
        (0.1 or "10%") of all that a rank receives of them; missing values count as zero. A ``loss_bound`` above 0 needs
        a SUM or MEAN of floating point. The results are exact, so all ranks end with the same bits. In a mean the term
        of the rank that misses a partial sum takes the weights of the missing terms, so that the weights add up to 1
        whatever was lost. The completion's ``missing_bytes`` are those missing from this rank's receives.

        ``lossy_results``: the results may be lost too, up to ``loss_bound`` of all that a rank receives of them. A rank
        keeps the sum that it has of what it misses, of a mean divided by its terms, and passes that on. So **ranks end
        with different bits**: what they compute from them drifts apart, unless it is made equal again now and then
        (``mlt.torch.BoundedLossState.resynchronise_every`` does). Needs a SUM or MEAN of floating point; the same on
        every rank.

        ``ranks``: the group, in ring order; None: all workers. ``stream`` in [0, 2^32): every stream of the same ranks
        is a group with an order of its own, so that independent users of a context need no common order. ``layer`` of
        ``layers``: 0 is the front layer, which is sent first. ``timeout`` in seconds limits the whole collective.
        ``dtype`` reads the tensor's bytes as another element type ("bfloat16", which numpy lacks). ``check_finite``: a
        NaN or an infinity in this rank's floating-point input ends the call at every rank with a CancelledError that
        names this rank and the element; nothing of the input is sent. Do not access the tensor until its completion is
        taken. Raises InvalidBufferError, ConfigError, UnknownPeerError, PeerFailedError,
        LimitError.

        >>> ones, threes = np.full(4, 1, np.float32), np.full(4, 3, np.float32)
        >>> started = rank_0.post_all_reduce(ones), rank_1.post_all_reduce(threes)  # each rank calls it once
        >>> [operation.wait().status for operation in started]
        ['complete', 'complete']
        >>> ones.tolist()
        [2.0, 2.0, 2.0, 2.0]
        >>> lists = [[np.full(1, rank), np.full(2, 10 * rank)] for rank in (1, 2)]
        >>> started = rank_0.post_all_reduce(lists[0], op=Reduction.SUM), rank_1.post_all_reduce(lists[1],
        ...                                                                                      op=Reduction.SUM)
        >>> [operation.wait().bytes for operation in started], [tensor.tolist() for tensor in lists[0]]
        ([24, 24], [[3], [30, 30]])
        """
        operation = self._engine.post_all_reduce(
            tensor,
            op,
            _algorithm(algorithm, ALGORITHMS),
            lossy_results,
            *self._how(ranks, stream, loss_bound, layer, layers, timeout, dtype, check_finite),
        )
        return self._operation(operation, "all_reduce")

    all_reduce = _then_wait(post_all_reduce)

    @explains_types
    def post_all_to_all(
        self,
        output: Any,
        input: Any,
        *,
        output_splits: Sequence[int] | None = None,
        input_splits: Sequence[int] | None = None,
        loss_bound: float | str = 0.0,
        ranks: Sequence[int] | None = None,
        stream: int = 0,
        layer: int = 0,
        layers: int = 1,
        timeout: float | None = None,
        dtype: str | None = None,
        check_finite: bool = False,
    ) -> Operation:
        """Start sending part ``i`` of ``input`` to the ``i``-th rank and receiving part ``i`` of ``output`` from it.

        Splits are rows of the first dimension, one count per rank of the group; None: equal parts. Part ``i`` of this
        rank's output has the size of this rank's part in rank ``i``'s input. Either may be a list instead, of one
        tensor for each rank, of any sizes. ``loss_bound`` applies to each part, for floating point only; missing
        elements become zero. All tensors have the same element type. An output overlaps nothing, except that those of
        a list may have this rank's own input as this rank's output. Otherwise as ``post_all_reduce``.

        >>> inputs = np.array([10, 11]), np.array([20, 21])  # of rank 0 and of rank 1
        >>> outputs = np.zeros(2, int), np.zeros(2, int)
        >>> started = [rank.post_all_to_all(outputs[i], inputs[i]) for i, rank in enumerate((rank_0, rank_1))]
        >>> [operation.wait().status for operation in started]
        ['complete', 'complete']
        >>> [output.tolist() for output in outputs]
        [[10, 20], [11, 21]]
        """
        group = self._group(ranks)
        operation = self._engine.post_all_to_all(
            output,
            input,
            _parts(output, output_splits, "output_splits", len(group), dtype),
            _parts(input, input_splits, "input_splits", len(group), dtype),
            *self._how(ranks, stream, loss_bound, layer, layers, timeout, dtype, check_finite),
        )
        return self._operation(operation, "all_to_all")

    all_to_all = _then_wait(post_all_to_all)

    @explains_types
    def post_gather(
        self,
        input: Any,
        output: Any | None = None,
        *,
        root: int = 0,
        loss_bound: float | str = 0.0,
        ranks: Sequence[int] | None = None,
        stream: int = 0,
        layer: int = 0,
        layers: int = 1,
        timeout: float | None = None,
        dtype: str | None = None,
        check_finite: bool = False,
    ) -> Operation:
        """Start sending ``input`` to rank ``root``, whose ``output`` receives all ranks' inputs in group order.

        ``input`` has the same size on every rank. ``output``: on the root only, with space for one input per rank of
        the group, or a list of one tensor for each. The root's own part of ``output`` may be its ``input``.
        ``loss_bound`` applies to each input, for floating point only; missing elements become zero. Otherwise as
        ``post_all_reduce``.

        >>> output = np.zeros(4, int)
        >>> started = [rank_0.post_gather(np.array([1, 2]), output), rank_1.post_gather(np.array([3, 4]))]
        >>> [operation.wait().status for operation in started]
        ['complete', 'complete']
        >>> output.tolist()
        [1, 2, 3, 4]
        """
        operation = self._engine.post_gather(
            input,
            output,
            root,
            *self._how(ranks, stream, loss_bound, layer, layers, timeout, dtype, check_finite),
        )
        return self._operation(operation, "gather")

    gather = _then_wait(post_gather)

    @explains_types
    def post_all_gather(
        self,
        output: Any,
        input: Any,
        *,
        loss_bound: float | str = 0.0,
        ranks: Sequence[int] | None = None,
        stream: int = 0,
        layer: int = 0,
        layers: int = 1,
        timeout: float | None = None,
        dtype: str | None = None,
        check_finite: bool = False,
        algorithm: str | None = None,
    ) -> Operation:
        """Start sending ``input`` to all ranks, whose ``output`` receives all ranks' inputs in group order.

        ``input`` has the same size on every rank, ``output`` space for one per rank of the group, or it is a list of
        one tensor for each. The own part of ``output`` may be the ``input``. ``loss_bound`` applies to each input at
        each rank, for floating point only; missing elements become zero, so that ranks may differ. ``algorithm``:
        "direct", each rank sends its input to every other, or "two-level", where ranks share hosts: to one rank of each
        other host, which passes it on there, without loss; None chooses by hosts and size, equal on every rank.
        Otherwise as ``post_all_reduce``.

        >>> outputs, inputs = (np.zeros(2, int), np.zeros(2, int)), (np.array([1]), np.array([2]))
        >>> started = [rank.post_all_gather(outputs[i], inputs[i]) for i, rank in enumerate((rank_0, rank_1))]
        >>> [operation.wait().status for operation in started]
        ['complete', 'complete']
        >>> [output.tolist() for output in outputs]
        [[1, 2], [1, 2]]
        """
        operation = self._engine.post_all_gather(
            output,
            input,
            _algorithm(algorithm, PARTED_ALGORITHMS),
            *self._how(ranks, stream, loss_bound, layer, layers, timeout, dtype, check_finite),
        )
        return self._operation(operation, "all_gather")

    all_gather = _then_wait(post_all_gather)

    @explains_types
    def post_reduce_scatter(
        self,
        output: Any,
        input: Any,
        *,
        op: Reduction = Reduction.MEAN,
        loss_bound: float | str = 0.0,
        ranks: Sequence[int] | None = None,
        stream: int = 0,
        layer: int = 0,
        layers: int = 1,
        timeout: float | None = None,
        dtype: str | None = None,
        check_finite: bool = False,
        algorithm: str | None = None,
    ) -> Operation:
        """Start reducing all ranks' inputs, of which the ``i``-th rank's ``output`` receives part ``i``.

        ``input`` has one part of the size of ``output`` per rank of the group, or is a list of them. ``output`` may be
        the own part of ``input``. Terms are combined in group order, once all have arrived, in memory of the size of
        ``input``; float16 and bfloat16 are rounded once. ``loss_bound`` applies to each part, for a SUM or MEAN of
        floating point only; a missing term counts as zero, and a mean divides by those that arrived. ``algorithm``:
        "direct", or "two-level", where ranks share hosts: each host's ranks add up what goes to other hosts first,
        without loss, and 16-bit sums are rounded at each addition; None chooses by hosts and size, equal on every rank.
        Otherwise as ``post_all_reduce``.

        >>> sums = np.zeros(1, int), np.zeros(1, int)
        >>> inputs = np.array([1, 2]), np.array([10, 20])
        >>> started = [rank.post_reduce_scatter(sums[i], inputs[i], op=Reduction.SUM)
        ...            for i, rank in enumerate((rank_0, rank_1))]
        >>> [operation.wait().status for operation in started]
        ['complete', 'complete']
        >>> [output.tolist() for output in sums]
        [[11], [22]]
        """
        operation = self._engine.post_reduce_scatter(
            output,
            input,
            op,
            _algorithm(algorithm, PARTED_ALGORITHMS),
            *self._how(ranks, stream, loss_bound, layer, layers, timeout, dtype, check_finite),
        )
        return self._operation(operation, "reduce_scatter")

    reduce_scatter = _then_wait(post_reduce_scatter)

    @explains_types
    def post_broadcast(
        self,
        tensor: Any,
        *,
        root: int = 0,
        algorithm: str | None = None,
        ranks: Sequence[int] | None = None,
        stream: int = 0,
        layer: int = 0,
        layers: int = 1,
        timeout: float | None = None,
        dtype: str | None = None,
        check_finite: bool = False,
    ) -> Operation:
        """Start replacing ``tensor`` by that of rank ``root``, exactly.

        ``tensor`` has the same size and type on every rank; the root's may be read-only, and each may be a list.
        ``algorithm``: "direct", the root sends its tensor to each rank of the group, "chain", each rank passes it on to
        the next while it arrives, or "two-level", a chain that enters and leaves each host once at most, where ranks
        share hosts; None chooses by hosts and size, equal on every rank. Otherwise as ``post_all_reduce``.

        >>> weights = np.arange(3), np.zeros(3, int)
        >>> started = rank_0.post_broadcast(weights[0], root=0), rank_1.post_broadcast(weights[1], root=0)
        >>> [operation.wait().status for operation in started]
        ['complete', 'complete']
        >>> weights[1].tolist()
        [0, 1, 2]
        """
        operation = self._engine.post_broadcast(
            tensor,
            root,
            _algorithm(algorithm, ROOTED_ALGORITHMS),
            *self._how(ranks, stream, 0.0, layer, layers, timeout, dtype, check_finite),
        )
        return self._operation(operation, "broadcast")

    broadcast = _then_wait(post_broadcast)

    @explains_types
    def post_reduce(
        self,
        input: Any,
        output: Any | None = None,
        *,
        op: Reduction = Reduction.MEAN,
        root: int = 0,
        algorithm: str | None = None,
        loss_bound: float | str = 0.0,
        ranks: Sequence[int] | None = None,
        stream: int = 0,
        layer: int = 0,
        layers: int = 1,
        timeout: float | None = None,
        dtype: str | None = None,
        check_finite: bool = False,
    ) -> Operation:
        """Start reducing all ranks' inputs at rank ``root``, whose ``output`` receives the result.

        ``input`` has the same size on every rank. ``output``: on the root only, of that size; it may be the ``input``.
        ``algorithm``: "chain", each rank combines its tensor with what arrives and passes it on to the next, in up to
        8 MiB of memory, and float16 and bfloat16 are rounded at each; or "direct", each sends it to the root, which
        combines the terms in group order, in memory of ``n - 1`` times the tensor, and rounds once; or "two-level", a
        chain that enters and leaves each host once at most, where ranks share hosts. None chooses by hosts and size,
        equal on every rank. ``loss_bound`` applies to each input, for a SUM or MEAN of floating point only; a chain
        loses nothing, otherwise a missing term counts as zero, and a mean divides by those that arrived. Otherwise as
        ``post_all_reduce``.

        >>> largest = np.zeros(2, int)
        >>> started = (rank_0.post_reduce(np.array([1, 5]), largest, op=Reduction.MAX),
        ...            rank_1.post_reduce(np.array([4, 2]), op=Reduction.MAX))
        >>> [operation.wait().status for operation in started]
        ['complete', 'complete']
        >>> largest.tolist()
        [4, 5]
        """
        operation = self._engine.post_reduce(
            input,
            output,
            root,
            op,
            _algorithm(algorithm, ROOTED_ALGORITHMS),
            *self._how(ranks, stream, loss_bound, layer, layers, timeout, dtype, check_finite),
        )
        return self._operation(operation, "reduce")

    reduce = _then_wait(post_reduce)

    @explains_types
    def post_scatter(
        self,
        output: Any,
        input: Any | None = None,
        *,
        root: int = 0,
        loss_bound: float | str = 0.0,
        ranks: Sequence[int] | None = None,
        stream: int = 0,
        layer: int = 0,
        layers: int = 1,
        timeout: float | None = None,
        dtype: str | None = None,
        check_finite: bool = False,
    ) -> Operation:
        """Start sending part ``i`` of rank ``root``'s ``input`` to the ``i``-th rank, whose ``output`` receives it.

        ``output`` has the same size on every rank. ``input``: on the root only, one part per rank of the group, or a
        list of them. The root's ``output`` may be its own part of ``input``. ``loss_bound`` applies to each part, for
        floating point only; missing elements become zero. Otherwise as ``post_all_reduce``.

        >>> parts = np.zeros(1, int), np.zeros(1, int)
        >>> started = rank_0.post_scatter(parts[0], np.array([10, 20])), rank_1.post_scatter(parts[1])
        >>> [operation.wait().status for operation in started]
        ['complete', 'complete']
        >>> [part.tolist() for part in parts]
        [[10], [20]]
        """
        operation = self._engine.post_scatter(
            output,
            input,
            root,
            *self._how(ranks, stream, loss_bound, layer, layers, timeout, dtype, check_finite),
        )
        return self._operation(operation, "scatter")

    scatter = _then_wait(post_scatter)

    @explains_types
    def post_barrier(
        self,
        *,
        ranks: Sequence[int] | None = None,
        stream: int = 0,
        layer: int = 0,
        layers: int = 1,
        timeout: float | None = None,
    ) -> Operation:
        """Start a barrier, which completes at no rank of the group before all have called it.

        Otherwise as ``post_all_reduce``.

        >>> first = rank_0.post_barrier()
        >>> first.done()
        False
        >>> rank_1.barrier().status, first.wait().status
        ('complete', 'complete')
        """
        operation = self._engine.post_barrier(
            self._group(ranks), _stream(stream), layer, _layers(layer, layers), times.limit_ns(timeout)
        )
        return self._operation(operation, "barrier")

    barrier = _then_wait(post_barrier)

    def check_norms(
        self,
        tensors: Any,
        *,
        max_ratio: float = 100.0,
        max_dropped: int = 0,
        ranks: Sequence[int] | None = None,
        stream: int = 0,
        timeout: float | None = None,
        dtype: str | None = None,
    ) -> NormCheck:
        """Compare the norm of this rank's floating-point tensor, or list of tensors, with the other ranks', before they
        are reduced. Every member calls it, as a collective of the group, and waits for the others.

        A rank is at fault whose norm is a NaN or an infinity, or above ``max_ratio`` times the median of all. Up to
        ``max_dropped`` such ranks are dropped as loss: their tensors are set to zero, and ``scale`` of the result turns
        a mean over all ranks into one over the others. With more than that every rank gets a CancelledError that names
        them. It reads the tensors once, and costs a small all-gather. Otherwise as ``post_all_reduce``.

        >>> gradients = np.full(2, 1e30, np.float32), np.full(2, 2, np.float32)  # rank 0 has a fault
        >>> from concurrent.futures import ThreadPoolExecutor
        >>> with ThreadPoolExecutor() as threads:  # the ranks wait for each other
        ...     other = threads.submit(rank_0.check_norms, gradients[0], max_dropped=1)
        ...     check = rank_1.check_norms(gradients[1], max_dropped=1)
        >>> started = rank_0.post_all_reduce(gradients[0]), rank_1.post_all_reduce(gradients[1])
        >>> [operation.wait().status for operation in started]
        ['complete', 'complete']
        >>> check.dropped, check.scale, (gradients[0] * check.scale).tolist()
        ((0,), 2.0, [2.0, 2.0])
        """
        norms.check_limits(max_ratio, max_dropped)
        listed = list(tensors) if isinstance(tensors, list | tuple) else [tensors]
        for tensor in listed:
            _core.tensor_info(tensor, dtype or "", max_dropped > 0)
        group = self._group(ranks)
        gather = functools.partial(self.all_gather, ranks=ranks, stream=stream, timeout=timeout)
        found = norms.exchanged(norms.norm_of(listed, dtype), len(group), gather)
        check = norms.checked(dict(zip(group, found, strict=True)), max_ratio, max_dropped)
        if self._config.rank in check.dropped:
            for tensor in listed:
                _core.clear(tensor)
        return check

    def end_group(self, reason: str, *, ranks: Sequence[int] | None = None, stream: int = 0) -> None:
        """End the group of ``ranks`` and ``stream``: its calls that this rank has not made fail at every member, and so
        do all later ones. Their errors name this rank and ``reason``. Other groups continue.

        Raises as ``post_all_reduce``.

        >>> rank_0.end_group("no more data", stream=3)
        >>> try:
        ...     rank_1.barrier(stream=3)
        ... except mlt.CancelledError as error:
        ...     print("rank 0 ended the group: no more data" in str(error), error.peer)
        True 0
        """
        group = self._group(ranks)
        operation = self._engine.post_barrier(group, _stream(stream), 0, 1, 0, reason or "no reason was given")
        with contextlib.suppress(CancelledError):
            self._operation(operation, "barrier").wait()

    def _group(self, ranks: Sequence[int] | None) -> Sequence[int]:
        if ranks is None:
            return self._workers
        if not ranks:
            raise ConfigError("ranks is empty; a group has at least this rank, and None means all workers")
        return list(ranks)

    def _how(
        self, ranks: Sequence[int] | None, stream: int, loss_bound: float | str, layer: int, layers: int,
        timeout: float | None, dtype: str | None, check_finite: bool,
    ) -> tuple[Sequence[int], int, float, int, int, int, str, bool]:  # fmt: skip
        """The last arguments of every collective of the native engine, checked."""
        group, layers = self._group(ranks), _layers(layer, layers)
        bound = loss_bound_of(loss_bound) if isinstance(loss_bound, str) else loss_bound
        return group, _stream(stream), bound, layer, layers, times.limit_ns(timeout), dtype or "", check_finite

    def _operation(self, operation: int, kind: Kind) -> Operation:
        return Operation(operation, kind, -1, 0, cast("Context", self))


def _algorithm(name: str | None, known: Sequence[str]) -> _core.Algorithm:
    if name is None:
        return _core.Algorithm.AUTOMATIC
    if name not in known:
        meant = did_you_mean(str(name), known)
        raise ConfigError(f"algorithm is {name!r}; expected one of {', '.join(known)}, or None{meant}")
    return _core.Algorithm[name.upper().replace("-", "_")]


def _stream(stream: int) -> int:
    if not 0 <= stream < 1 << 32:
        raise ConfigError(f"stream is {stream!r}; it is a number from 0 to {(1 << 32) - 1}")
    return stream


def _layers(layer: int, layers: int) -> int:
    if layers < 1 or not 0 <= layer < layers:
        raise ConfigError(f"layer {layer} of {layers}: give 0 <= layer < layers")
    return layers


def _parts(tensor: Any, splits: Sequence[int] | None, name: str, ranks: int, dtype: str | None) -> list[int]:
    """Number of elements of each part; empty for equal parts."""
    if splits is None:
        return []
    if isinstance(tensor, list | tuple):
        raise InvalidBufferError(f"{name} was given for a list of tensors, which have their sizes: leave it out")
    info = _core.tensor_info(tensor, dtype or "")
    rows = info.shape[0] if info.shape else 1
    if len(splits) != ranks or any(split < 0 for split in splits) or sum(splits) != rows:
        raise InvalidBufferError(
            f"{name} is {list(splits)!r}; give {ranks} numbers of rows, one for each rank, that add up to {rows}"
        )
    row = info.elements // rows if rows else 0
    return [split * row for split in splits]
