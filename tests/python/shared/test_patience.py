"""Waits that speak: when, and how often."""

from __future__ import annotations

import pytest
from checks import until

from mlt._shared import patience


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_patience__repeats_itself_once_a_minute(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    monkeypatch.setattr(patience.time, "monotonic", clock)
    asked = patience.Patience()
    for second in range(130):
        asked.ask(lambda second=second: f"text {second}")
        clock.now += 1
    assert [record.getMessage().split()[0] for record in caplog.records] == ["text"] * 3


def test_patience__tells_what_is_new_where_it_shall(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    monkeypatch.setattr(patience.time, "monotonic", clock)
    asked = patience.Patience(changes=True)
    for _ in range(30):
        asked.ask(lambda: "rank 1" if clock.now < 115 else "ranks 1, 2")
        clock.now += 1
    assert [record.getMessage() for record in caplog.records] == ["rank 1", "ranks 1, 2"]


def test_speaking__reports_a_wait_without_a_loop_and_falls_silent_at_its_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(patience, "QUIET_SECONDS", 0.05)
    monkeypatch.setattr(patience, "REPEAT_SECONDS", 0.05)
    with patience.speaking(lambda: "a short wait"):
        pass
    with patience.speaking(lambda: "a long wait"):
        until(lambda: len(caplog.records) > 1)
    said = len(caplog.records)
    assert {record.getMessage() for record in caplog.records} == {"a long wait"}
    with pytest.raises(AssertionError):
        until(lambda: len(caplog.records) > said, seconds=0.3)
