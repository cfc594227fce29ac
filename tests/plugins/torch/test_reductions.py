"""c10d's reduce operations as the transport's, and tensors in the form that the transport takes."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from checks import names
from mlt.torch.reductions import (
    LIST_BYTES,
    LISTED_BYTES,
    Landing,
    as_elements,
    divisor_of,
    factor_of,
    in_lists,
    multiplied,
    reduction_of,
)

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
        (dist.ReduceOp.AVG, torch.bool, TypeError),
        (dist.ReduceOp.BAND, torch.float32, TypeError),
        (dist.ReduceOp.MAX, torch.complex64, TypeError),
        (dist.ReduceOp.PREMUL_SUM, torch.float32, ValueError),  # the enumerator has no factor
        (dist._make_nccl_premul_sum(0.5), torch.int32, TypeError),
        (dist._make_nccl_premul_sum(0.5), torch.bool, TypeError),
        (dist._make_nccl_premul_sum(torch.ones(1, dtype=torch.complex64)), torch.float32, ValueError),
        (dist._make_nccl_premul_sum(torch.ones(1, device="meta")), torch.float32, TypeError),
    ],
)
def test_reduction_of__refuses_what_is_undefined(operation: object, dtype: torch.dtype, error: type[Exception]) -> None:
    with pytest.raises(error, match=names("mlt reduce")):
        reduction_of(opts(operation), [torch.ones(1, dtype=dtype)], "reduce")


def test_reduction_of__names_operation_and_type_of_bits() -> None:
    for operation in (dist.ReduceOp.BAND, dist.ReduceOp.BOR, dist.ReduceOp.BXOR):
        facts = (str(operation).rpartition(".")[2], "torch.float16", "integers or bool", "SUM")
        for given in (operation, dist.ReduceOp(operation)):  # as c10d passes it
            with pytest.raises(TypeError, match=names("mlt allreduce", *facts)):
                reduction_of(opts(given), [torch.ones(1, dtype=torch.float16)], "allreduce")


def test_as_elements__has_the_types_of_the_transport() -> None:
    assert as_elements(torch.ones(2, 3, dtype=torch.bfloat16)).dtype == torch.bfloat16
    assert as_elements(torch.ones((), requires_grad=True)).shape == (1,)
    assert as_elements(torch.ones(2, dtype=torch.complex64)).numel() == 16
    for name in ("uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64", "uint64", "bool"):
        assert as_elements(torch.zeros(1, dtype=getattr(torch, name))).dtype == getattr(torch, name)


def test_factor_of__is_the_number_of_the_operation() -> None:
    for factor in (0.25, torch.tensor(0.25), torch.tensor([0.25], dtype=torch.float64)):
        operation = opts(dist._make_nccl_premul_sum(factor))
        assert reduction_of(operation, [torch.ones(1)], "reduce") == "SUM"
        assert factor_of(operation, "reduce") == 0.25
    for other in (None, opts(dist.ReduceOp.SUM), opts(dist.ReduceOp.AVG)):
        assert factor_of(other, "reduce") == 1.0


def test_multiplied__has_the_type_and_new_memory() -> None:
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        data = torch.arange(1, 100, dtype=dtype)
        product = multiplied(data, 1 / 3)
        assert product.dtype == dtype
        assert torch.allclose(product.double(), data.double() / 3, rtol=torch.finfo(dtype).eps, atol=0)
        assert torch.equal(data, torch.arange(1, 100, dtype=dtype))
        assert multiplied(data, 1.0) is data


def test_reduction_of__the_mean_of_integers_is_their_sum_divided() -> None:
    average, integers = opts(dist.ReduceOp.AVG), [torch.ones(1, dtype=torch.int64)]
    assert reduction_of(average, integers, "allreduce") == "SUM"
    assert divisor_of(average, integers, 3) == 3
    assert divisor_of(opts(dist.ReduceOp.SUM), integers, 3) == 1
    assert divisor_of(average, [torch.ones(1)], 3) == 1
    with pytest.raises(TypeError, match=names("allreduce", "integers")):
        reduction_of(average, [*integers, torch.ones(1)], "allreduce")


def test_landing__divides_towards_zero() -> None:
    strided = torch.tensor([[7, -7], [8, -1]], dtype=torch.int32).t()
    for tensor in (strided, torch.tensor([7, 8, -7, -1], dtype=torch.int16)):
        Landing(tensor).land(3)
        assert tensor.flatten().tolist() == [2, 2, -2, 0]


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


def test_in_lists__has_small_tensors_of_a_type_together_and_others_alone() -> None:
    large, maximum = torch.zeros(LISTED_BYTES // 4 + 1), torch.zeros(LISTED_BYTES // 4)
    small, empty, double = torch.zeros(3), torch.zeros(0), torch.zeros(2, dtype=torch.float64)
    lists = in_lists([small, large, double, empty, maximum])
    assert [[id(one) for one in tensors] for tensors in lists] == [
        [id(small), id(maximum)],
        [id(large)],
        [id(double)],
    ]
    assert in_lists([empty]) == []


def test_in_lists__begins_another_list_before_one_is_too_long() -> None:
    whole = LIST_BYTES // LISTED_BYTES
    tensors = [torch.zeros(LISTED_BYTES, dtype=torch.uint8) for _ in range(2 * whole + 1)]
    assert [len(one) for one in in_lists(tensors)] == [whole, whole, 1]


def test_landing__of_a_parameter_is_no_part_of_the_graph() -> None:
    for tensor in (torch.ones(2, 3, requires_grad=True), torch.ones((), requires_grad=True)):
        landing = Landing(tensor)
        assert not landing.data.requires_grad
        landing.data.fill_(5)
        landing.land()
        assert tensor.detach().unique().tolist() == [5.0]
        flat = as_elements(tensor)
        assert (flat.dim(), flat.dtype, flat.numel(), flat.requires_grad) == (1, tensor.dtype, tensor.numel(), False)
        assert flat.data_ptr() == tensor.data_ptr()
