"""Works of calls in progress, and the threads that run the calls."""

from __future__ import annotations

import traceback
from datetime import timedelta
from threading import Event

import pytest
import torch
from checks import names
from mlt.torch.work import CallQueue, MltWork, failure_of

import mlt


def test_wait__raises_what_failed() -> None:
    def fail() -> None:
        raise ConnectionError("rank 1 died")

    work = MltWork("mlt allreduce (call 3)")
    assert not work.is_completed()
    work.run(fail)
    work.publish([torch.ones(1)])
    with pytest.raises(RuntimeError, match=names("call 3", "rank 1")) as caught:
        work.wait()
    assert isinstance(caught.value.__cause__, ConnectionError)
    assert work.is_completed()
    assert not work.is_success()
    with pytest.raises(RuntimeError, match="rank 1 died"):
        work.get_future().wait()


def test_wait__an_error_of_mlt_is_one_traceback() -> None:
    error = mlt.SizeMismatchError("rank 0: 40 bytes, rank 1: 44 bytes")

    def fail() -> None:
        raise error

    work = MltWork("mlt allreduce (call 3)")
    work.run(fail)
    for _ in range(2):
        with pytest.raises(RuntimeError, match=names("call 3", "40 bytes")) as caught:
            work.wait()
        shown = "".join(traceback.format_exception(caught.value))
        assert shown.count("Traceback") == 1
        assert shown.count("40 bytes") == 1
    assert failure_of("mlt send", error).__context__ is error


def test_wait__returns_once_completed() -> None:
    result = [torch.ones(1)]
    work = MltWork("mlt barrier")
    work.run(lambda: None)
    work.publish(result)
    assert work.wait()
    assert work.is_success()
    assert work.get_future().wait() is result
    assert work.result() == result


@pytest.mark.parametrize(
    ("call", "text", "is_advised"),
    [
        ("mlt allreduce of float32[3] (call 9)", "rank 0 left the job: its process closed its context", True),
        ("gradient bucket 0 of step 3", "rank 0 left the job: its process closed its context", True),
        ("mlt broadcast", "rank 0 left the job: its process closed its context", False),
        ("mlt allreduce", "rank 0 died", False),
    ],
)
def test_failure__of_a_rank_that_left_names_join(call: str, text: str, is_advised: bool) -> None:
    assert ("join()" in str(failure_of(call, mlt.PeerFailedError(text)))) == is_advised


def test_wait__ends_at_its_own_timeout() -> None:
    work = MltWork("mlt barrier (call 2)")
    with pytest.raises(RuntimeError, match=names("call 2", "0.01 s")):
        work.wait(timedelta(milliseconds=10))
    work.run(lambda: None)
    assert work.wait(timedelta(milliseconds=10))


def test_run__is_no_part_of_the_graph() -> None:
    parameter = torch.nn.Parameter(torch.ones(3))
    work = MltWork("mlt allreduce")
    work.run(lambda: setattr(parameter.mul_(2), "seen", True))
    work.publish(None)
    work.wait()
    assert parameter.tolist() == [2.0] * 3


@pytest.mark.parametrize("depth", [1, 4])
def test_calls__of_which_callbacks_wait_for_later_ones(depth: int) -> None:
    calls = CallQueue("test")
    order: list[int] = []
    works = [MltWork(f"call {number}") for number in range(depth + 1)]
    posted = Event()

    def wait_for(number: int) -> None:
        posted.wait()
        works[number].get_future().wait()
        order.append(number)

    for number in range(depth):
        works[number].get_future().then(lambda _, later=number + 1: wait_for(later))
    for number, work in enumerate(works):
        calls.submit(work, lambda: None, number)
    posted.set()
    calls.close()
    assert sorted(order) == list(range(1, depth + 1))


def test_calls__run_one_after_another_in_order() -> None:
    calls = CallQueue("test")
    order: list[int] = []
    works = [MltWork("call") for _ in range(200)]
    for number, work in enumerate(works):
        work.get_future().then(lambda _: Event().wait(0.0001))
        calls.submit(work, lambda number=number: order.append(number), None)  # type: ignore[misc]
    calls.close()
    assert order == list(range(200))
    assert all(work.is_success() for work in works)
