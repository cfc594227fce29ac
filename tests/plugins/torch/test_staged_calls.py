"""Calls on a device's tensors, between real processes, on a stand-in whose copies come late."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from job import answers, run_job
from mlt.torch import staging
from mlt.torch.staged_calls import StagedCalls, in_host_memory
from mlt.torch.work import MltWork
from stand_in import StandIn


def ended(action: Any = lambda: None) -> MltWork:
    """The Work of a call that has run."""
    work = MltWork("inner")
    work.run(action)
    return work


@pytest.mark.parametrize("workers", [2, 3])
def test_collectives__of_a_device_wait_for_its_stream_and_make_it_wait(workers: int) -> None:
    told = answers(run_job("staged", workers=workers), workers=workers)
    assert told == [["sums", "copies", "mixed", "futures", "completion", "layouts", "hook", "shares"]] * workers


def test_calls__wait_for_their_turn_and_an_inner_call_has_had_it() -> None:
    calls, may_end, order = StagedCalls("test"), threading.Event(), []

    def first() -> MltWork:
        order.append(("inner call is free", calls.is_free()))
        return ended(may_end.wait)

    assert calls.is_free()
    one = calls.submit(first, [], "one")
    two = calls.submit(lambda: ended(lambda: order.append("two")), [], "two")
    assert not calls.is_free()
    may_end.set()
    assert one.wait()
    assert two.wait()
    assert order == [("inner call is free", True), "two"]
    calls.close()
    assert calls.is_free()


@pytest.mark.parametrize("is_awaited", [True, False])
def test_call__that_fails_is_the_failure_of_its_work(is_awaited: bool) -> None:
    device, calls = StandIn(), StagedCalls("test")
    tensor = device.tensor(torch.ones(4))

    def start(_: object) -> MltWork:
        raise ValueError("no such rank")

    work = calls.make(device, start, [([tensor], tensor, tensor)], [tensor], "one", is_awaited=is_awaited)
    with pytest.raises(RuntimeError, match=r"one: no such rank"):
        work.wait()
    assert work.is_completed()
    assert not work.is_success()
    calls.close()


def test_in_host_memory__holds_what_the_stream_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    device = StandIn()
    monkeypatch.setattr(staging, "_devices", [device])
    tensor = device.tensor(torch.zeros(3))
    device.compute.enqueue(lambda: tensor.fill_(5))
    (mirror,) = in_host_memory([tensor], "send")
    assert mirror.tolist() == [5, 5, 5]
    plain = torch.ones(2)
    assert in_host_memory([plain], "send")[0] is plain
