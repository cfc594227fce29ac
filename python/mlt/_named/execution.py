"""Carries out a batch of answers with the context's collectives. Every rank of the process set gets the same batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np

from mlt._core import Reduction
from mlt._named import elements
from mlt._named.elements import Bytes
from mlt._named.requests import Answer, Request

if TYPE_CHECKING:
    from mlt.context import Context
    from mlt.operation import Completion, Operation

# Larger tensors are faster in operations of their own, which overlap and copy nothing: 20 of 1 MiB took 0.6 to 0.7 of
# the time of one buffer, 40 of 256 KiB 0.7 to 1.0, 40 of 128 KiB 1.0 to 1.4 (two ranks on one host).
FUSED_TENSOR_BYTES: Final = 128 << 10
_STREAM: Final = 0x6E616D65  # process set 0; no stream of another user of the context
_OVERTAKING_STREAM: Final = _STREAM - 1

_REDUCTIONS: Final = {
    "sum": Reduction.SUM,
    "average": Reduction.SUM,
    "min": Reduction.MIN,
    "max": Reduction.MAX,
    "product": Reduction.PRODUCT,
}


class Tensors(Protocol):
    """The tensors of one submission."""

    def input(self, index: int) -> Bytes:
        """The bytes of an input; read only."""
        ...

    def allocate(self, index: int, shape: tuple[int, ...]) -> Bytes:
        """Memory for an output of this shape; may be that of the input."""
        ...


Finish = Callable[[], None]


@dataclass
class Started:
    """Operations in progress, and what to do in order once all have completed. ``stream``: of the operations."""

    stream: int
    operations: list[Operation] = field(default_factory=list)
    finish: list[Finish] = field(default_factory=list)

    def end(self) -> tuple[Completion, ...]:
        """Wait, then finish; the operations' completions. Raises MltError."""
        completions = tuple(operation.wait() for operation in self.operations)
        for step in self.finish:
            step()
        return completions


class Execution:
    """Runs the operations of one rank. ``ranks``: of the process set, in order."""

    def __init__(self, context: Context | None, rank: int) -> None:
        self._context = context
        self._rank = rank

    def start(
        self,
        answers: Sequence[Answer],
        tensors: Sequence[Tensors | None],
        ranks: tuple[int, ...],
        *,
        overtakes: bool = False,
    ) -> Started:
        """Start a batch; ``tensors`` by answer, None on a rank that has joined. ``overtakes``: of the lane whose order
        among the others' differs between ranks. Raises MltError."""
        kind = answers[0].request.kind
        started = Started(_OVERTAKING_STREAM if overtakes else _stream(answers[0].request))
        if kind == "allreduce":
            self._allreduce(answers, tensors, ranks, started)
        elif (of := tensors[0]) is not None:
            carry_out = {
                "allgather": self._allgather,
                "broadcast": self._broadcast,
                "alltoall": self._alltoall,
                "reducescatter": self._reducescatter,
            }.get(kind)
            if carry_out is not None:
                carry_out(answers[0], of, ranks, started)
        return started

    def _allreduce(
        self, answers: Sequence[Answer], tensors: Sequence[Tensors | None], ranks: tuple[int, ...], started: Started
    ) -> None:
        """Small tensors of one element type share an operation; every other tensor has one."""
        fused: dict[str, list[tuple[Bytes | None, Bytes | None, int]]] = {}
        request = answers[0].request
        for answer, of in zip(answers, tensors, strict=True):
            for index, (dtype, shape) in enumerate(answer.request.tensors):
                size = elements.elements(shape) * elements.item_bytes(dtype)
                source = None if of is None else of.input(index)
                output = None if of is None else of.allocate(index, shape)
                if size <= FUSED_TENSOR_BYTES and request.op != "adasum":
                    fused.setdefault(dtype, []).append((source, output, size))
                else:
                    self._reduce_one(request, dtype, [(source, output, size)], ranks, started)
        for dtype, parts in fused.items():
            self._reduce_one(request, dtype, parts, ranks, started)

    def _reduce_one(
        self,
        request: Request,
        dtype: str,
        parts: list[tuple[Bytes | None, Bytes | None, int]],
        ranks: tuple[int, ...],
        started: Started,
    ) -> None:
        total = sum(size for _, _, size in parts)
        if not total:
            return
        output = parts[0][1]
        alone = len(parts) == 1 and output is not None
        flat: Bytes = output if alone and output is not None else np.empty(total, np.uint8)
        at = 0
        for source, _, size in parts:
            piece = flat[at : at + size]
            if source is None:
                elements.neutral(piece, dtype, request.op)
            elif not np.shares_memory(piece, source):
                piece[...] = source
            at += size
        elements.scale(flat, dtype, request.prescale)
        if request.op == "adasum":
            self._adasum(flat, dtype, ranks, started)
        else:
            self._post_all_reduce(flat, dtype, request, ranks, started)
        started.finish.append(lambda: _scale_after(flat, dtype, request, len(ranks)))
        if not alone:
            started.finish.append(lambda: _scatter(flat, parts))

    def _post_all_reduce(
        self, flat: Bytes, dtype: str, request: Request, ranks: tuple[int, ...], started: Started
    ) -> None:
        if self._context is None or len(ranks) == 1:
            return
        op = Reduction.MEAN if _is_native_mean(request, dtype) else _REDUCTIONS[request.op]
        bound = request.bound if op in (Reduction.SUM, Reduction.MEAN) and elements.is_float(dtype) else 0.0
        started.operations.append(
            self._context.post_all_reduce(
                flat,
                op=op,
                loss_bound=bound,
                ranks=ranks,
                stream=started.stream,
                layer=request.layer,
                layers=request.layers,
                dtype=dtype,
            )
        )

    def _adasum(self, flat: Bytes, dtype: str, ranks: tuple[int, ...], started: Started) -> None:
        """Every rank gathers all tensors and adds them up in the same order, so all have the same bits."""
        if self._context is None or len(ranks) == 1:
            return
        everything = np.empty(len(ranks) * flat.size, np.uint8)
        started.operations.append(self._context.post_all_gather(everything, flat, ranks=ranks, stream=_STREAM))

        def add() -> None:
            flat[...] = elements.adasum(list(everything.reshape(len(ranks), -1)), dtype)

        started.finish.append(add)

    def _allgather(self, answer: Answer, of: Tensors, ranks: tuple[int, ...], started: Started) -> None:
        for index, (dtype, shape) in enumerate(answer.request.tensors):
            rows = answer.rows[index]
            row = elements.item_bytes(dtype) * elements.elements(shape[1:])
            output = of.allocate(index, (sum(rows), *shape[1:]))
            own = ranks.index(self._rank)
            offsets = np.cumsum([0, *rows]) * row
            output[offsets[own] : offsets[own + 1]] = of.input(index)
            if self._context is None or len(ranks) == 1 or not output.size:
                continue
            stream = _stream(answer.request)
            if len(set(rows)) == 1:
                mine = output[offsets[own] : offsets[own + 1]]
                started.operations.append(self._context.post_all_gather(output, mine, ranks=ranks, stream=stream))
                continue
            for i, root in enumerate(ranks):
                part = output[offsets[i] : offsets[i + 1]]
                if part.size:
                    started.operations.append(self._context.post_broadcast(part, root=root, ranks=ranks, stream=stream))

    def _broadcast(self, answer: Answer, of: Tensors, ranks: tuple[int, ...], started: Started) -> None:
        request = answer.request
        for index, (_, shape) in enumerate(request.tensors):
            output = of.allocate(index, shape)
            if self._rank == request.root and not np.shares_memory(output, of.input(index)):
                output[...] = of.input(index)
            if self._context is not None and len(ranks) > 1 and output.size:
                started.operations.append(
                    self._context.post_broadcast(output, root=request.root, ranks=ranks, stream=_stream(request))
                )

    def _alltoall(self, answer: Answer, of: Tensors, ranks: tuple[int, ...], started: Started) -> None:
        dtype, shape = answer.request.tensors[0]
        row = elements.item_bytes(dtype) * elements.elements(shape[1:])
        own = ranks.index(self._rank)
        given, received = answer.rows[own], [rows[own] for rows in answer.rows]
        source = of.input(0)[: sum(given) * row]
        output = of.allocate(0, (sum(received), *shape[1:]))
        if self._context is None or len(ranks) == 1:
            output[...] = source
            return
        if not row or not any(map(sum, answer.rows)):
            return
        started.operations.append(
            self._context.post_all_to_all(
                output,
                source,
                output_splits=[rows * row for rows in received],
                input_splits=[rows * row for rows in given],
                ranks=ranks,
                stream=_stream(answer.request),
            )
        )

    def _reducescatter(self, answer: Answer, of: Tensors, ranks: tuple[int, ...], started: Started) -> None:
        """The transport wants equal parts: shorter ones are padded by a row that is not delivered."""
        request = answer.request
        own = ranks.index(self._rank)
        for index, (dtype, shape) in enumerate(request.tensors):
            row = elements.item_bytes(dtype) * elements.elements(shape[1:])
            counts = parts_of(shape[0], len(ranks))
            output = of.allocate(index, (counts[own], *shape[1:]))
            part = counts[0] * row
            if not part:
                continue
            terms = np.zeros(part * len(ranks), np.uint8)
            at = 0
            for i, count in enumerate(counts):
                terms[i * part : i * part + count * row] = of.input(index)[at : at + count * row]
                at += count * row
            elements.scale(terms, dtype, request.prescale)
            mine = terms[own * part : (own + 1) * part]
            if self._context is not None and len(ranks) > 1:
                op = Reduction.MEAN if _is_native_mean(request, dtype) else _REDUCTIONS[request.op]
                started.operations.append(
                    self._context.post_reduce_scatter(
                        mine, terms, op=op, ranks=ranks, stream=_stream(request), dtype=dtype
                    )
                )
            started.finish.append(_deliver(mine, output, dtype, request, len(ranks)))


def parts_of(rows: int, ranks: int) -> list[int]:
    """Rows of each rank in a reducescatter: the first ranks get one more where they cannot be equal."""
    return [rows // ranks + (rank < rows % ranks) for rank in range(ranks)]


def _deliver(mine: Bytes, output: Bytes, dtype: str, request: Request, ranks: int) -> Finish:
    def deliver() -> None:
        output[...] = mine[: output.size]
        _scale_after(output, dtype, request, ranks)

    return deliver


def _is_native_mean(request: Request, dtype: str) -> bool:
    return request.op == "average" and request.postscale == 1.0 and elements.is_float(dtype)


def _scale_after(flat: Bytes, dtype: str, request: Request, ranks: int) -> None:
    if request.op != "average" or _is_native_mean(request, dtype):
        elements.scale(flat, dtype, request.postscale)
    elif elements.is_float(dtype) or request.postscale != 1.0:
        elements.scale(flat, dtype, request.postscale / ranks)
    else:
        elements.divide(flat, dtype, ranks)


def _scatter(flat: Bytes, parts: list[tuple[Bytes | None, Bytes | None, int]]) -> None:
    at = 0
    for _, output, size in parts:
        if output is not None:
            output[...] = flat[at : at + size]
        at += size


def _stream(request: Request) -> int:
    """Streams of one group keep their order; groups of the same ranks are one process set."""
    return _STREAM + request.set_id
