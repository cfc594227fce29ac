"""``shares_by_rate=`` and MLT_SHARES_BY_RATE: what is accepted, and that links without a limit change nothing."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from transport_jobs import local_job

import mlt

CALLS = 40  # beyond two periods of four calls for each of three ranks


@pytest.mark.parametrize("text", ["yes", "2", "-1"])
def test_context__rejects_a_bad_variable(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLT_SHARES_BY_RATE", text)
    with pytest.raises(mlt.ConfigError, match=f"MLT_SHARES_BY_RATE is '{text}'"):
        mlt.Context(0, 1)


@pytest.mark.parametrize("value", [1, "1", 0.5])
def test_context__rejects_what_is_not_a_bool(value: Any) -> None:
    with pytest.raises((mlt.ConfigError, TypeError), match="shares_by_rate is"):
        mlt.Context(0, 1, shares_by_rate=value)


def test_ring__through_shared_memory_keeps_equal_chunks() -> None:
    def calls(context: mlt.Context) -> None:
        for call in range(CALLS):
            tensor = np.full(100_000, context.rank + call, np.float32)
            context.all_reduce(tensor, op=mlt.Reduction.SUM, algorithm="ring")
            assert (tensor == 3 + 3 * call).all()

    with local_job(3, shares_by_rate=True) as ranks, ThreadPoolExecutor(3) as threads:
        list(threads.map(calls, ranks))
        assert [rank.counters()["rings_cut_by_rate"] for rank in ranks] == [0, 0, 0]
