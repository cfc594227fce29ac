"""Monitored barriers between contexts of one process."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta

import pytest
from checks import assert_names
from mlt.torch.monitored_barrier import MonitoredBarrier
from transport_jobs import local_job

RANKS = (0, 1, 2)


@pytest.fixture
def barriers() -> Iterator[list[MonitoredBarrier]]:
    with local_job(3) as contexts:
        yield [MonitoredBarrier(context, RANKS, own=context.rank, tag=1 << 40) for context in contexts]


def called(barriers: list[MonitoredBarrier], seconds: float, *, name_all: bool) -> list[str]:
    """Call these barriers at once; the text of each error, or nothing."""
    with ThreadPoolExecutor(len(barriers)) as pool:
        ends: list[Future[None]] = [
            pool.submit(one.wait, timedelta(seconds=seconds), name_all=name_all) for one in barriers
        ]
        return [str(end.exception() or "") for end in ends]


def test_wait__returns_when_all_have_called(barriers: list[MonitoredBarrier]) -> None:
    for _ in range(3):
        assert called(barriers, 20, name_all=False) == [""] * 3


def test_wait__names_the_first_that_is_missing(barriers: list[MonitoredBarrier]) -> None:
    first, third = called([barriers[0], barriers[2]], 0.5, name_all=False)
    assert_names(first, "[Rank 0]", "Rank 1", "500 ms")
    assert_names(third, "Rank 2", "rank 0", "500 ms")


def test_wait__names_all_that_are_missing(barriers: list[MonitoredBarrier]) -> None:
    [told] = called([barriers[0]], 0.5, name_all=True)
    assert_names(told, "Ranks 1, 2", "500 ms")


def test_wait__of_no_time_fails_at_once(barriers: list[MonitoredBarrier]) -> None:
    with pytest.raises(RuntimeError, match="Rank 0 timed out in monitoredBarrier"):
        barriers[0].wait(timedelta(0), name_all=False)
