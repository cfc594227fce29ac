"""The collectives that move data: their arguments here, their results between real processes."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest
import torch
from checks import names
from job import answers, run_job
from mlt.torch.process_group import MltProcessGroup

import mlt


@pytest.fixture
def alone() -> Iterator[MltProcessGroup]:
    """A group of one rank."""
    with mlt.Context(0, 1) as context:
        group = MltProcessGroup(context, rank=0, ranks=(0,), group_id="7", timeout=timedelta(seconds=30))
        yield group
        group.shutdown()


@pytest.mark.parametrize("call", ["allgather", "gather"])
def test_gathers__reject_a_list_that_is_no_output_per_rank(alone: MltProcessGroup, call: str) -> None:
    with pytest.raises(ValueError, match=names(f"mlt {call}", "2 output tensors", "group of 1")):
        getattr(alone, call)([[torch.zeros(1), torch.zeros(1)]], [torch.ones(1)])


@pytest.mark.parametrize(("workers", "drop"), [(2, 0.0), (3, 0.02)])
def test_verbs__as_torch_defines_them(workers: int, drop: float) -> None:
    told = answers(run_job("verbs", workers=workers, drop=drop), workers=workers)
    assert [answer["size"] for answer in told] == [workers] * workers
