"""``spin_us=`` and MLT_SPIN_US: what is accepted, and that 0 turns polling off."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from transport_jobs import local_job

import mlt


@pytest.mark.parametrize(("value", "words"), [(-1, "spin_us is -1"), (2_000_000, "spin_us is 2000000")])
def test_context__rejects_a_bad_bound(value: Any, words: str) -> None:
    with pytest.raises(mlt.ConfigError, match=words):
        mlt.Context(0, 1, spin_us=value)


@pytest.mark.parametrize("text", ["long", "-1", "2s", "2000000"])
def test_context__rejects_a_bad_variable(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLT_SPIN_US", text)
    with pytest.raises(mlt.ConfigError, match=f"MLT_SPIN_US is '{text}'"):
        mlt.Context(0, 1)


def exchange(rank: mlt.Context, rounds: int) -> None:
    data = np.ones(16, np.float32)
    for _ in range(rounds):
        rank.all_reduce(data)


def test_waits__drive_and_poll_only_with_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLT_SPIN_US", "0us")
    with local_job(2) as (a, b):
        other = threading.Thread(target=exchange, args=(b, 100))
        other.start()
        exchange(a, 100)
        other.join()
        counters = a.counters()
        assert counters["engine_driven_by_posts"] >= 10
        assert counters["engine_driven_by_waiters"] >= 10
        assert counters["engine_spins_won"] == counters["engine_spins_lost"] == 0
