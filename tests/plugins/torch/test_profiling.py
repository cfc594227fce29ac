"""torch's own tools on a group "mlt": the profiler and its traces, debug mode, the flight recorder."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import torch.distributed as dist
from checks import assert_names
from job import answers, run_job
from mlt.torch.profiling import recorded
from torch.profiler import ProfilerActivity, profile

PROGRAMS = Path(__file__).with_name("profiling_programs.py")
LATE_SECONDS = 0.5
EVENTS = {
    "mlt:all_gather": 1,
    "mlt:all_reduce": 2 + 1,  # and a step's bucket
    "mlt:all_to_all": 2,
    "mlt:barrier": 1,
    "mlt:broadcast": 1,
    "mlt:gather": 1,
    "mlt:reduce": 1,
    "mlt:reduce_scatter": 1,
    "mlt:scatter": 1,
}


def test_trace__has_each_call_and_the_wait_for_its_end(tmp_path: Path) -> None:
    first, second = answers(run_job("traced", programs=PROGRAMS, folder=str(tmp_path), late_seconds=LATE_SECONDS))
    assert Counter(name for name, _ in first if name != "mlt:wait") == Counter(EVENTS | {"mlt:send": 1})
    assert Counter(name for name, _ in second if name != "mlt:wait") == Counter(EVENTS | {"mlt:recv": 1})
    # Rank 0 comes to the barrier while rank 1 sleeps.
    assert max(seconds for name, seconds in first if name == "mlt:wait") > 0.5 * LATE_SECONDS


def test_profile__has_each_bucket_of_the_hook() -> None:
    assert answers(run_job("hooked", programs=PROGRAMS)) == [["mlt:bounded_loss_hook"] * 2] * 2


def test_debug_mode__works_without_torchs_wrapper_and_calls_that_differ_are_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", "DETAIL")
    monkeypatch.setenv("TORCH_FR_BUFFER_SIZE", "100")
    for answer in answers(run_job("debugged", programs=PROGRAMS)):
        assert (answer["is_wrapped"], answer["sum"], answer["backend"]) == (False, 1.0, "mlt")
        assert answer["recorded"] == 0  # torch's flight recorder has calls of its own backends only
        assert_names(answer["error"], "12 bytes", "16 bytes", "every member must call the same")


def test_recorded__works_without_future_and_with_failed_calls() -> None:
    work = dist.Work()
    assert recorded("recv", lambda: work) is work  # not profiled
    with profile(activities=[ProfilerActivity.CPU]) as found:
        assert recorded("recv", lambda: work) is work
        with pytest.raises(ZeroDivisionError):
            recorded("allreduce", lambda: 1 / 0)
    assert [event.name for event in found.events()] == ["mlt:recv", "mlt:all_reduce"]
