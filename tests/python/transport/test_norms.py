"""Norms of all ranks' tensors are compared before they are reduced: the rank at fault is named, or dropped."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from checks import assert_names
from transport_jobs import local_job

import mlt
from mlt.norms import NormCheck, outliers

RANKS = 4


@pytest.fixture(scope="module")
def job() -> Iterator[list[mlt.Context]]:
    with local_job(RANKS) as contexts:
        yield contexts


def of_all(contexts: list[mlt.Context], tensors: list[Any], **options: Any) -> list[NormCheck | mlt.MltError]:
    """The result of ``check_norms`` of each rank, or its error."""

    def check(context: mlt.Context, tensor: Any) -> NormCheck | mlt.MltError:
        try:
            return context.check_norms(tensor, timeout=30, **options)
        except mlt.MltError as error:
            return error

    with ThreadPoolExecutor(len(contexts)) as threads:
        return list(threads.map(check, contexts, tensors))


def tensors_of(values: list[float], dtype: type = np.float32) -> list[np.ndarray]:
    return [np.full(9, value, dtype) for value in values]


def test_check_norms__of_ranks_that_are_alike_has_all_norms_and_drops_none(job: list[mlt.Context]) -> None:
    tensors = tensors_of([1, 2, -3, 50])
    for check in of_all(job, tensors):
        assert isinstance(check, NormCheck)
        assert check.norms == {0: 3.0, 1: 6.0, 2: 9.0, 3: 150.0}
        assert (check.dropped, check.scale) == ((), 1.0)
    assert [tensor[0] for tensor in tensors] == [1, 2, -3, 50]


@pytest.mark.parametrize("value", [1e30, np.nan, np.inf])
def test_check_norms__names_the_rank_that_is_far_from_the_others_at_every_rank(
    job: list[mlt.Context], value: float
) -> None:
    for error in of_all(job, tensors_of([1, 1, value, 1])):
        assert isinstance(error, mlt.CancelledError)
        assert error.peer == 2
        assert_names(str(error), "rank 2's tensors is", "the median of all ranks' is 3", "max_dropped")
    # The group still works.
    assert all(isinstance(check, NormCheck) for check in of_all(job, tensors_of([1, 1, 1, 1])))


@pytest.mark.parametrize("value", [1e30, np.nan, -np.inf])
def test_check_norms__drops_the_contribution_where_that_is_allowed(job: list[mlt.Context], value: float) -> None:
    tensors = tensors_of([1, 2, value, 6])
    checks = of_all(job, tensors, max_dropped=1)
    started = [context.post_all_reduce(tensor) for context, tensor in zip(job, tensors, strict=True)]
    assert [operation.wait(30).status for operation in started] == ["complete"] * RANKS
    for check, mean in zip(checks, tensors, strict=True):
        assert isinstance(check, NormCheck)
        assert check.dropped == (2,)
        np.testing.assert_allclose(mean * check.scale, 3.0)  # of 1, 2 and 6


def test_check_norms__more_than_may_be_dropped_changes_nothing(job: list[mlt.Context]) -> None:
    tensors = tensors_of([np.inf, 2, np.inf, 6])
    for error in of_all(job, tensors, max_dropped=1):
        assert_names(str(error), "rank 0's tensors is inf, rank 2's tensors is inf")
    assert [tensor[0] for tensor in tensors] == [np.inf, 2, np.inf, 6]
    for error in of_all(job, tensors_of([np.nan] * RANKS), max_dropped=RANKS):
        assert_names(str(error), "not finite either")  # no rank is left


def test_check_norms__takes_lists_of_types_and_groups_of_ranks_and_streams(job: list[mlt.Context]) -> None:
    torch = pytest.importorskip("torch")
    given = [
        [np.full(4, 2, np.float16), np.full(3, 2, np.float64)],
        [torch.full((7,), 1e8, dtype=torch.bfloat16)],
    ]
    for check in of_all([job[3], job[1]], given, ranks=[3, 1], stream=5, max_dropped=1):
        assert isinstance(check, NormCheck)
        assert check.norms[3] == pytest.approx(28**0.5)
        assert check.dropped == (1,)
    assert (given[1][0] == 0).all()
    assert (given[0][0] == 2).all()


def test_check_norms__rejects_what_has_no_norm_before_anything_is_counted(job: list[mlt.Context]) -> None:
    with pytest.raises(mlt.InvalidBufferError, match=r"int64\[3\] has no norm"):
        job[0].check_norms(np.ones(3, np.int64))
    with pytest.raises(mlt.ConfigError, match="max_ratio is 1"):
        job[0].check_norms(np.ones(3), max_ratio=1)
    with pytest.raises(mlt.ConfigError, match="max_dropped is -1"):
        job[0].check_norms(np.ones(3), max_dropped=-1)
    constant = np.ones(3)
    constant.flags.writeable = False
    with pytest.raises(mlt.InvalidBufferError, match="read-only"):
        job[0].check_norms(constant, max_dropped=1)
    assert all(isinstance(check, NormCheck) for check in of_all(job, [constant] * RANKS))


def test_outliers__where_most_ranks_have_nothing_only_what_is_not_finite_counts() -> None:
    assert outliers({0: 0.0, 1: 0.0, 2: 7.0}, 100) == ()
    assert outliers({0: 0.0, 1: 0.0, 2: float("inf")}, 100) == (2,)
