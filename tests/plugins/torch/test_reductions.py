"""c10d's reduce operations as the transport's, and tensors in the form that the transport takes."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from checks import names
from mlt.torch.reductions import Landing, reduction_of

import mlt


def opts(operation: object) -> SimpleNamespace:
    return SimpleNamespace(reduceOp=operation)


def test_reduction_of__names_one_of_the_transport() -> None:
    for operation in ("SUM", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR"):
        name = reduction_of(opts(getattr(dist.ReduceOp, operation)), [torch.ones(1, dtype=torch.int32)], "allreduce")
        assert name in mlt.Reduction.__members__
        assert operation.removeprefix("B") == name
    assert reduction_of(opts(dist.ReduceOp.AVG), [torch.ones(1)], "allreduce") == "MEAN"
    assert reduction_of(None, [torch.ones(1)], "allreduce") == "SUM"


@pytest.mark.parametrize(
    ("operation", "dtype", "error"),
    [
        (dist.ReduceOp.AVG, torch.int64, TypeError),
        (dist.ReduceOp.BAND, torch.float32, TypeError),
        (dist.ReduceOp.MAX, torch.complex64, TypeError),
        (dist.ReduceOp.PREMUL_SUM, torch.float32, ValueError),
    ],
)
def test_reduction_of__refuses_what_is_undefined(operation: object, dtype: torch.dtype, error: type[Exception]) -> None:
    with pytest.raises(error, match=names("mlt reduce")):
        reduction_of(opts(operation), [torch.ones(1, dtype=dtype)], "reduce")


def test_landing__shares_memory_where_it_can() -> None:
    for tensor in (torch.zeros(6), torch.zeros(3, dtype=torch.complex64)):
        landing = Landing(tensor)
        landing.data.fill_(1)
        assert tensor.flatten()[2] != 0
        landing.land()
        assert tensor.flatten()[2] != 0


def test_landing__copies_back_what_is_strided_or_conjugated() -> None:
    strided = torch.zeros(4, 3).t()
    conjugated = torch.zeros(4, dtype=torch.complex64).conj()
    for tensor in (strided, conjugated):
        landing = Landing(tensor)
        assert landing.data.is_contiguous()
        landing.data.fill_(2)
        landing.land()
    assert strided.unique().tolist() == [2.0]
    assert conjugated.tolist() == [2 + 2j] * 4
