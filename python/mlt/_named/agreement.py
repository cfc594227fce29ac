"""Whether the requests that ranks made under one name agree, and if so what all of them do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mlt._named import elements
from mlt._named.requests import Answer, Request, Spec
from mlt._shared.counts import count_of

_SAME_SHAPE = ("allreduce", "broadcast", "reducescatter", "barrier")
_ROWS_DIFFER = ("allgather", "alltoall")
_SPARSE_HINT = "; a sparse gradient is gathered: make it sparse on all ranks or on none (sparse_as_dense=True)"
_WITH_JOINED = ("allreduce", "barrier", "add_set", "remove_set")


def agree(requests: Mapping[int, Request], ranks: Sequence[int], joined: frozenset[int]) -> Answer:
    """The answer to the requests of one name, by rank; ``ranks`` are those of the process set, in order.

    The answer's error names the tensor and, for each value that differs, the ranks that have it.
    """
    by_rank = {rank: requests[rank] for rank in ranks if rank in requests}
    first = next(iter(by_rank.values()))
    error = _difference(by_rank) or _invalid(first, ranks)
    missing = sorted(set(ranks) & joined)
    if not error and missing and first.kind not in _WITH_JOINED:
        error = f"{_ranks(missing)} called join(), and {first.kind} does not work without {_them(missing)}"
    rows: tuple[tuple[int, ...], ...] = ()
    if not error and first.kind == "allgather":
        rows = tuple(tuple(request.tensors[i][1][0] for request in by_rank.values()) for i in range(len(first.tensors)))
    if not error and first.kind == "alltoall":
        error, rows = _splits(by_rank, ranks)
    return Answer(first, rows, error=f"tensor {first.name!r}: {error}" if error else "")


def _difference(by_rank: Mapping[int, Request]) -> str:
    """The first property in which the requests differ."""
    kind = next(iter(by_rank.values())).kind
    checks: list[tuple[str, Callable[[Request], Any]]] = [
        ("list of sparse gradients", lambda request: _join(map(str, request.sparse)) or "none"),
        ("operation", lambda request: request.kind),
        ("number of tensors", lambda request: len(request.tensors)),
        ("element type", lambda request: _join(dtype for dtype, _ in request.tensors)),
    ]
    if kind in _SAME_SHAPE:
        checks.append(("shape", lambda request: _join(_shape(shape) for _, shape in request.tensors)))
    elif kind in _ROWS_DIFFER:
        checks.append(("shape after the first dimension", lambda request: _join(map(_row_shape, request.tensors))))
    if kind == "barrier":
        checks.append(("number of layers", lambda request: request.layers))
    checks += [
        ("reduction", lambda request: request.op),
        ("root rank", lambda request: request.root),
        ("prescale_factor", lambda request: request.prescale),
        ("postscale_factor", lambda request: request.postscale),
        ("loss bound", lambda request: request.bound),
        ("list of ranks", lambda request: request.ranks),
    ]
    for what, value_of in checks:
        values: dict[Any, list[int]] = {}
        for rank, request in by_rank.items():
            values.setdefault(value_of(request), []).append(rank)
        if len(values) > 1:
            found = "; ".join(f"{value} on {_ranks(of)}" for value, of in values.items())
            hint = _SPARSE_HINT if what == "operation" and set(values) == {"allreduce", "allgather"} else ""
            return f"the {what} differs between ranks: {found}{hint}"
    return ""


def _invalid(request: Request, ranks: Sequence[int]) -> str:
    """The error in a request on which all ranks agree; empty if there is none."""
    if request.kind == "broadcast" and request.root not in ranks:
        return f"root rank {request.root} is not in the process set of {_ranks(ranks)}"
    if request.kind in (*_ROWS_DIFFER, "reducescatter") and any(not shape for _, shape in request.tensors):
        return f"{request.kind} needs a first dimension to divide or to concatenate, and a scalar has none"
    dtypes = {dtype for dtype, _ in request.tensors}
    if request.op in ("average", "adasum") and "bool" in dtypes:
        return f"bool has no {request.op}; give Sum, Min or Max"
    if "bool" in dtypes and (request.prescale, request.postscale) != (1.0, 1.0):
        return "bool has no prescale_factor or postscale_factor"
    if request.op == "adasum":
        if request.kind != "allreduce":
            return f"{request.kind} has no Adasum"
        if len(ranks) & (len(ranks) - 1):
            return f"Adasum needs a power of two of ranks, and the process set has {len(ranks)}"
        if not all(map(elements.is_float, dtypes)):
            return f"Adasum needs floating point, and the tensor is {_join(sorted(dtypes))}"
    return ""


def _splits(by_rank: Mapping[int, Request], ranks: Sequence[int]) -> tuple[str, tuple[tuple[int, ...], ...]]:
    """The rows of an alltoall by sender and receiver, or what is wrong with them."""
    rows = []
    for rank, request in by_rank.items():
        length = request.tensors[0][1][0]
        splits = request.splits
        if splits is None:
            if length % len(ranks):
                return (
                    f"rank {rank} has {count_of(length, 'row')}, which {len(ranks)} ranks do not divide; give splits",
                    (),
                )
            splits = (length // len(ranks),) * len(ranks)
        if len(splits) != len(ranks) or sum(splits) > length or min(splits) < 0:
            return (
                f"splits of rank {rank} are {list(splits)}: give {len(ranks)} numbers, one for each rank, that add up "
                f"to the {length} rows of its tensor, or fewer",
                (),
            )
        rows.append(splits)
    return "", tuple(rows)


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"


def _them(ranks: Sequence[int]) -> str:
    return "it" if len(ranks) == 1 else "them"


def _shape(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) if shape else "scalar"


def _row_shape(spec: Spec) -> str:
    return "scalar" if not spec[1] else _shape(spec[1][1:]) if len(spec[1]) > 1 else "none"


def _join(texts: Any) -> str:
    return ", ".join(texts)
