"""The part that every call of a process group needs: the end of the group."""

from __future__ import annotations

from datetime import timedelta

import pytest
import torch
from checks import assert_names, names
from job import answers, run_job
from mlt.torch.process_group import MltProcessGroup
from mlt.torch.process_group_base import BACKEND

import mlt


def test_abort__closes_the_context_and_later_calls_are_rejected() -> None:
    with mlt.Context(0, 1) as context:
        group = MltProcessGroup(context, rank=0, ranks=(0,), group_id="7", timeout=timedelta(seconds=30))
        assert group.getBackendName() == BACKEND
        group.abort()
        group.abort()
        assert context.closed
        with pytest.raises(RuntimeError, match=names("allreduce", "'7'", "shut down")):
            group.allreduce([torch.ones(1)])


def test_pending_collective__does_not_hold_up_the_end_of_a_failed_process() -> None:
    failed, watching = run_job("unanswered")
    assert failed.status == 1
    assert "the program failed" in failed.output
    assert watching.answer["gone_after"] < 20


def test_split_group__is_refused_and_new_subgroups_does_it() -> None:
    parts = [[0, 2], [1]]
    for rank, answer in enumerate(answers(run_job("split", workers=3, parts=parts), workers=3)):
        by_torch, by_group, merged = answer["errors"]
        assert_names(by_torch, "split")  # torch's own words
        assert_names(by_group, "mlt split_group", "new_group", "new_subgroups_by_enumeration")
        assert_names(merged, "mlt merge_remote_group", "start a new one")
        (own,) = (part for part in parts if rank in part)
        assert answer["ranks"] == own
        assert answer["sum"] == sum(1 << other for other in own)
