"""What every call of a process group needs: the end of the group."""

from __future__ import annotations

from datetime import timedelta

import pytest
import torch
from checks import names
from job import run_job
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
