"""Requests of one name: which of them agree, and what the error names."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from checks import assert_names

from mlt._named.agreement import agree
from mlt._named.requests import Answer, Request

REDUCE = Request("allreduce", "weight", (("float32", (4, 2)),), op="sum")
GATHER = Request("allgather", "rows", (("float32", (4, 2)),))
MOVE = Request("alltoall", "moved", (("int64", (4, 2)),))


@pytest.mark.parametrize(
    ("request_", "change", "named"),
    [
        (REDUCE, {"tensors": (("float32", (5, 2)),)}, ("shape", "4x2", "5x2")),
        (REDUCE, {"tensors": (("float64", (4, 2)),)}, ("float32", "float64")),
        (REDUCE, {"tensors": ()}, ("number of tensors",)),
        (REDUCE, {"kind": "broadcast", "op": ""}, ("allreduce", "broadcast")),
        (REDUCE, {"kind": "allgather", "op": ""}, ("allreduce", "allgather", "sparse_as_dense=True")),
        (REDUCE, {"kind": "barrier", "sparse": (1, 4)}, ("sparse gradients", "none on ranks 0", "1, 4 on rank")),
        (REDUCE, {"op": "max"}, ("reduction", "sum", "max")),
        (REDUCE, {"prescale": 0.5}, ("prescale_factor", "0.5")),
        (REDUCE, {"postscale": 0.5}, ("postscale_factor", "0.5")),
        (REDUCE, {"bound": 0.1}, ("loss bound", "0.1")),
        (Request("broadcast", "weight", (("int8", (1,)),), root=0), {"root": 2}, ("root rank", "2")),
        (GATHER, {"tensors": (("float32", (4, 3)),)}, ("shape", "2", "3")),
        (replace(REDUCE, kind="barrier", op=""), {"tensors": (("float32", (5, 2)),)}, ("shape", "4x2", "5x2")),
        (replace(REDUCE, kind="barrier", op="", layers=2), {"layers": 3}, ("number of layers", "2", "3")),
        (Request("add_set", "weight", ranks=(0, 1)), {"ranks": (0, 2)}, ("list of ranks",)),
    ],
)
def test_agree__names_tensor_values_and_ranks(
    request_: Request, change: dict[str, Any], named: tuple[str, ...]
) -> None:
    answer = agree({0: request_, 1: replace(request_, **change), 2: request_}, (0, 1, 2), frozenset())
    assert_names(answer.error, request_.name, "ranks 0, 2", "rank 1", *named)


@pytest.mark.parametrize(
    ("request_", "ranks", "named"),
    [
        (Request("broadcast", "weight", (("int8", (1,)),), root=3), (0, 1), ("root rank 3", "ranks 0, 1")),
        (replace(GATHER, tensors=(("float32", ()),)), (0, 1), ("scalar",)),
        (Request("reducescatter", "weight", (("float32", ()),), op="sum"), (0, 1), ("scalar",)),
        (replace(REDUCE, tensors=(("bool", (2,)),), op="average"), (0, 1), ("bool", "average")),
        (replace(REDUCE, tensors=(("bool", (2,)),), postscale=2.0), (0, 1), ("bool", "postscale_factor")),
        (replace(REDUCE, op="adasum"), (0, 1, 2), ("power of two", "3")),
        (replace(REDUCE, op="adasum", tensors=(("int32", (2,)),)), (0, 1), ("floating point", "int32")),
        (MOVE, (0, 1, 2), ("rank 0", "4 rows", "3 ranks")),
        (replace(MOVE, splits=(3, 2)), (0, 1), ("rank 0", "[3, 2]", "4 rows")),
        (replace(MOVE, splits=(3,)), (0, 1), ("rank 0", "[3]", "2 numbers")),
    ],
)
def test_agree__rejects_what_cannot_be_done(request_: Request, ranks: tuple[int, ...], named: tuple[str, ...]) -> None:
    assert_names(agree(dict.fromkeys(ranks, request_), ranks, frozenset()).error, request_.name, *named)


def test_agree__first_dimensions_of_allgather_may_differ() -> None:
    longer = replace(GATHER, tensors=(("float32", (0, 2)),))
    assert agree({1: GATHER, 2: longer}, (1, 2), frozenset()) == Answer(GATHER, rows=((4, 0),))


def test_agree__alltoall_has_rows_by_sender_and_receiver() -> None:
    requests = {0: replace(MOVE, splits=(1, 2)), 1: MOVE}
    assert agree(requests, (0, 1), frozenset()).rows == ((1, 2), (2, 2))


def test_agree__a_joined_rank_is_missed_by_all_but_allreduce() -> None:
    assert agree({0: REDUCE}, (0, 1), frozenset({1})).error == ""
    assert_names(agree({0: GATHER}, (0, 1), frozenset({1})).error, "rows", "rank 1", "join", "allgather")
