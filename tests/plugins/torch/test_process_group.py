"""The backend "mlt" of torch.distributed, between real processes."""

from __future__ import annotations

import mlt.torch
import pytest
from checks import assert_names
from job import answers, run_job


@pytest.mark.parametrize(("workers", "drop"), [(2, 0.0), (3, 0.02)])
def test_collectives__exact_on_every_rank(workers: int, drop: float) -> None:
    told = answers(run_job("collectives", workers=workers, drop=drop), workers=workers)
    assert {answer["size"] for answer in told} == {workers}
    assert len({answer["sha256"] for answer in told}) == 1


@pytest.mark.parametrize(("workers", "drop"), [(2, 0.0), (3, 0.02)])
def test_verbs__as_torch_defines_them(workers: int, drop: float) -> None:
    told = answers(run_job("verbs", workers=workers, drop=drop), workers=workers)
    assert [answer["size"] for answer in told] == [workers] * workers


@pytest.mark.parametrize(("workers", "drop"), [(2, 0.0), (3, 0.02)])
def test_premul_sum__as_a_model_in_float64(workers: int, drop: float) -> None:
    told = answers(run_job("premultiplied", workers=workers, drop=drop), workers=workers)
    assert [answer["size"] for answer in told] == [workers] * workers


def test_ddp__trains_over_the_exact_collectives_without_the_hook() -> None:
    told = answers(run_job("ddp", services=1, steps=3, bound=0.0, drop=0.02, hook=False))
    assert told[0]["sha256"] == told[1]["sha256"]
    assert told[0]["calls"] == []


def test_monitored_barrier__names_the_first_that_is_missing_or_all() -> None:
    first, second, third = answers(run_job("barriers", workers=3, absent=[1], all=False), workers=3)
    assert_names(first, "Rank 1", "1000 ms")
    assert second == ""
    assert_names(third, "Rank 2", "rank 0", "1000 ms")
    first, *_ = answers(run_job("barriers", workers=3, absent=[1, 2], all=True), workers=3)
    assert_names(first, "Ranks 1, 2", "1000 ms")


def test_barrier__waits_for_the_last_rank() -> None:
    seconds = answers(run_job("straggler", seconds=1.0))
    # Rank 0 came at once and stayed for (nearly) as long as rank 1 slept.
    assert seconds[0] > 0.8


def test_current_context__says_what_to_call_first() -> None:
    with pytest.raises(RuntimeError, match="init_process_group"):
        mlt.torch.current_context()


def test_lossy__sums_inside_may_lack_terms_and_are_the_same_everywhere() -> None:
    told = answers(run_job("lossy", workers=3, drop=0.03, seed=5), workers=3)
    assert len({answer["sha256"] for answer in told}) == 1
    before, inside, after = told[0]["short"]
    assert before == after == 0.0
    assert 0.0 < inside <= 0.2  # two hops
