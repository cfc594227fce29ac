"""The hook's per-step statistics."""

from __future__ import annotations

import doctest

from mlt._gradients import statistics
from mlt._gradients.statistics import StepLog, StepStatistics


def test_step_log__step_ends_with_its_last_result_whatever_the_order() -> None:
    log = StepLog(history=10)
    first = log.push(first=True, last=False)
    log.result(first, pushed_bytes=100, missing_bytes=10, repairs=1)
    assert log.latest() is None
    assert log.push(first=False, last=True) is first
    log.result(first, pushed_bytes=300, missing_bytes=0, repairs=2)
    latest = log.latest()
    assert latest is not None
    assert (latest.step, latest.buckets, latest.bytes, latest.missing_bytes, latest.repairs) == (0, 2, 400, 10, 3)
    assert latest.loss_fraction == 10 / 400
    assert 0 <= latest.exposed_seconds <= latest.sync_seconds


def test_step_log__keeps_the_latest_steps() -> None:
    log = StepLog(history=2)
    for _ in range(3):
        step = log.push(first=True, last=True)
        log.result(step, pushed_bytes=0, missing_bytes=0, repairs=0)
    assert [step.step for step in log.finished()] == [1, 2]
    assert log.finished()[0].loss_fraction == 0.0


def test_scalars__and_the_log_line_are_as_documented() -> None:
    assert doctest.testmod(statistics) == doctest.TestResults(failed=0, attempted=2)


def test_str__of_a_step_without_loss() -> None:
    assert str(StepStatistics(0, 1, 65536, 0, 1, 0.5, 0.0)) == (
        "step 0: 64 KiB in 1 bucket, 500 ms, 0 s of them exposed; 0% lost, 1 segment repaired"
    )
