"""The backend "mlt" of torch.distributed, between real processes."""

from __future__ import annotations

import mlt.torch
import pytest
import torch
import torch.distributed as dist
from checks import names
from job import answers, run_job
from mlt.torch.process_group import BACKEND
from mlt.torch.work import MltWork


@pytest.mark.parametrize(("workers", "drop"), [(2, 0.0), (3, 0.02)])
def test_collectives__exact_on_every_rank(workers: int, drop: float) -> None:
    told = answers(run_job("collectives", workers=workers, drop=drop), workers=workers)
    assert {answer["size"] for answer in told} == {workers}
    assert len({answer["sha256"] for answer in told}) == 1


def test_ddp__trains_over_the_exact_collectives_without_the_hook() -> None:
    told = answers(run_job("ddp", services=1, steps=3, bound=0.0, drop=0.02, hook=False))
    assert told[0]["sha256"] == told[1]["sha256"]
    assert told[0]["calls"] == []


def test_pending_collective__does_not_hold_up_the_end_of_a_failed_process() -> None:
    failed, watching = run_job("unanswered")
    assert failed.status == 1
    assert "the program failed" in failed.output
    assert watching.answer["gone_after"] < 20


def test_barrier__waits_for_the_last_rank() -> None:
    seconds = answers(run_job("straggler", seconds=1.0))
    # Rank 0 came at once and stayed for (nearly) as long as rank 1 slept.
    assert seconds[0] > 0.8


def test_current_context__says_what_to_call_first() -> None:
    with pytest.raises(RuntimeError, match="init_process_group"):
        mlt.torch.current_context()


def test_register_backend__is_known_to_torch_and_may_be_repeated() -> None:
    mlt.torch.register_backend()
    assert BACKEND in dist.Backend.backend_list


def test_work__wait_raises_what_failed() -> None:
    def fail() -> None:
        raise ConnectionError("rank 1 died")

    work = MltWork()
    assert not work.is_completed()
    work.complete(fail, [torch.ones(1)], "mlt allreduce (call 3)")
    with pytest.raises(RuntimeError, match=names("call 3", "rank 1")) as caught:
        work.wait()
    assert isinstance(caught.value.__cause__, ConnectionError)
    assert work.is_completed()
    assert not work.is_success()
    with pytest.raises(RuntimeError, match="rank 1 died"):
        work.get_future().wait()


def test_work__wait_returns_once_completed() -> None:
    result = [torch.ones(1)]
    work = MltWork()
    work.complete(lambda: None, result, "mlt barrier")
    assert work.wait()
    assert work.is_success()
    assert work.get_future().wait() is result
