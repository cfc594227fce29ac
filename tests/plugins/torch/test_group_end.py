"""The end of groups with calls in progress: it is soon, every rank learns of it, and other groups continue."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from checks import assert_names
from job import answers, run_job
from mlt.torch import group_end

PROGRAMS = Path(__file__).with_name("group_end_programs.py")
SOON_SECONDS = 12.0  # the wait for calls in progress, and for the other ranks to see the end


@pytest.mark.parametrize("hook", [False, True])
@pytest.mark.parametrize("late", [False, True])
def test_destroy__in_finally_of_a_rank_whose_backward_pass_raised(hook: bool, late: bool) -> None:
    outcomes = run_job("thrown", workers=3, programs=PROGRAMS, hook=hook, late=late)
    first, thrower, third = answers(outcomes, workers=3)
    assert thrower["error"] == "of the program"
    assert all(one["seconds"] < SOON_SECONDS for one in (first, thrower, third))
    for one in (first, third):
        assert_names(one["error"], "rank 1")
    if late:
        assert_names(first["error"], "rank 1", "ValueError", "destroyed its process group while")


def test_destroy__with_unanswered_calls_fails_them_at_every_rank_and_names_the_first() -> None:
    first, culprit, third = answers(run_job("unanswered", workers=3, programs=PROGRAMS), workers=3)
    for one in (first, culprit, third):
        assert one["seconds"] < SOON_SECONDS
    assert_names(first["errors"][0], "rank 1", "destroyed its process group while allreduce of float32[3] (call 2")
    assert_names(third["errors"][0], "rank 1", "failed", "destroyed its process group while allreduce of float32[3]")
    assert all(culprit["errors"])


@pytest.mark.parametrize(
    ("end", "reason"),
    [("destroy", "destroyed its process group while allreduce of float32[3]"), ("abort", "aborted process group '1'")],
)
def test_end__of_a_subgroup_fails_its_calls_at_every_rank_and_no_other_group(end: str, reason: str) -> None:
    for rank, told in enumerate(answers(run_job("in_a_subgroup", workers=3, programs=PROGRAMS, end=end), workers=3)):
        assert told["sums"] == [3.0, 3.0]
        assert told["seconds"] < SOON_SECONDS
        assert all(told["errors"])
        if rank != 1:
            for error in told["errors"]:
                assert_names(error, "rank 1", reason)


def test_abort__of_the_default_group_ends_all() -> None:
    first, _, third = answers(run_job("aborted_default", workers=3, programs=PROGRAMS), workers=3)
    for one in (first, third):
        for error in one["errors"]:
            assert_names(error, "rank 1", "abort")


def test_destroy__beside_a_stopped_rank() -> None:
    alive = run_job("stopped_peer", programs=PROGRAMS, stop=1)[0]
    assert alive.status == 0, alive.output
    assert alive.answer["group"] < SOON_SECONDS
    assert alive.answer["all"] < SOON_SECONDS


def test_destroy__completes_a_send_whose_data_arrives() -> None:
    _, receiver = answers(run_job("large", programs=PROGRAMS, megabytes=64))
    assert receiver == {"minimum": 1.0}


def test_destroy__makes_the_calls_on_a_device_that_wait_for_their_turn() -> None:
    for told in answers(run_job("staged", programs=PROGRAMS)):
        assert told == {"errors": [""] * 8, "sums": [2.0] * 8}


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


class Idle:
    """A context through which nothing arrives, unless the test says so."""

    closed = False
    arrived = 0

    def counters(self) -> dict[str, int]:
        return {"segments_placed": self.arrived, "data_packets_sent": 9, "segments_repaired": 4}


def test_grace__lasts_while_data_arrives_and_only_once(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, context = Clock(), Idle()
    monkeypatch.setattr(group_end, "time", SimpleNamespace(monotonic=clock.monotonic))
    grace = group_end.Grace(context)  # type: ignore[arg-type]
    assert grace.left() == group_end.QUIET_SECONDS
    clock.now += 2.0
    context.arrived = 7
    assert grace.left() == group_end.QUIET_SECONDS
    clock.now += group_end.QUIET_SECONDS
    assert grace.left() == 0.0
    grace.end_early()
    assert group_end.Grace(context).left() == 0.0  # type: ignore[arg-type]
    clock.now += 60
    grace = group_end.Grace(context)  # type: ignore[arg-type]
    for _ in range(40):
        clock.now += 1.0
        context.arrived += 1
        grace.left()
    assert grace.left() == 0.0  # 30 s in all
