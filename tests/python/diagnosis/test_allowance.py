"""The limits of what ``mlt doctor --serve`` sends, on a clock that the test turns."""

from __future__ import annotations

import pytest

from mlt.diagnosis.allowance import (
    ALL_BYTES,
    ALL_BYTES_PER_SECOND,
    CALLER_BYTES,
    CALLER_BYTES_PER_SECOND,
    MAX_CALLERS,
    Allowances,
)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_caller__has_its_share_and_waits_for_more() -> None:
    clock = Clock()
    allowances = Allowances(clock)
    one = allowances.of("10.0.0.1")
    assert one.take(CALLER_BYTES)
    assert not one.is_spent
    assert not one.take(1)
    assert one.is_spent
    clock.now += 1
    again = allowances.of("10.0.0.1")
    assert not again.is_spent
    assert not again.take(CALLER_BYTES_PER_SECOND + 1)
    assert again.take(CALLER_BYTES_PER_SECOND)
    clock.now += 3_600
    assert not again.take(CALLER_BYTES + 1)
    assert again.take(CALLER_BYTES)


def test_caller__is_a_host_whatever_addresses_it_has() -> None:
    allowances = Allowances(Clock())
    assert allowances.of("2001:db8::1").take(CALLER_BYTES)
    assert not allowances.of("2001:db8::2").take(1)
    assert allowances.of("2001:db8:0:1::1").take(1)
    assert allowances.of("10.0.0.1").take(CALLER_BYTES)
    assert allowances.of("10.0.0.2").take(1)


def test_all_together__have_a_share_too() -> None:
    clock = Clock()
    allowances = Allowances(clock)
    taken = sum(CALLER_BYTES for host in range(100) if allowances.of(f"10.0.0.{host}").take(CALLER_BYTES))
    assert taken == ALL_BYTES
    clock.now += 2
    assert allowances.of("10.0.1.1").take(2 * ALL_BYTES_PER_SECOND)


@pytest.mark.parametrize("others", [MAX_CALLERS - 1, MAX_CALLERS])
def test_callers__that_are_remembered_are_so_many(others: int) -> None:
    allowances = Allowances(Clock())
    assert allowances.of("10.0.0.1").take(CALLER_BYTES)
    for host in range(others):
        allowances.of(f"10.1.{host >> 8}.{host & 255}")
    assert allowances.of("10.0.0.1").take(1) == (others == MAX_CALLERS)
