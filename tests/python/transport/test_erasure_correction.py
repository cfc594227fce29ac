"""``erasure_correction=`` and MLT_ERASURE_CORRECTION: what is accepted, and what is sent with it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from transport_jobs import local_job

import mlt


@pytest.mark.parametrize("text", ["yes", "2", "-1"])
def test_context__rejects_a_bad_variable(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLT_ERASURE_CORRECTION", text)
    with pytest.raises(mlt.ConfigError, match=f"MLT_ERASURE_CORRECTION is '{text}'"):
        mlt.Context(0, 1)


@pytest.mark.parametrize("value", [1, "1", 0.5])
def test_context__rejects_what_is_not_a_bool(value: Any) -> None:
    with pytest.raises((mlt.ConfigError, TypeError), match="erasure_correction is"):
        mlt.Context(0, 1, erasure_correction=value)


def counters_of_transfers(faults: mlt.Faults, *, erasure_correction: bool) -> tuple[dict[str, int], dict[str, int]]:
    """Exact tensors one after another, the last of which have a known loss before them."""
    options = {"erasure_correction": erasure_correction, "faults": faults, "datapath": "udp"}
    with local_job(2, **options) as (sender, receiver):
        for tag in range(12):
            tensor = np.random.default_rng(tag).standard_normal(200_000 + tag).astype(np.float32)
            target = np.zeros_like(tensor)
            receive = receiver.post_recv(target, from_=0, tag=tag)
            send = sender.post_send(tensor, to=1, tag=tag)
            receiver.wait(receive)
            sender.wait(send)
            assert (target == tensor).all()
        return sender.counters(), receiver.counters()


def test_context__restores_lost_segments_where_round_trips_are_long() -> None:
    sent, received = counters_of_transfers(mlt.Faults(drop=0.02, delay_us=2_000, seed=5), erasure_correction=True)
    assert sent["parity_packets_sent"] > 0
    assert received["segments_restored"] > 0


@pytest.mark.parametrize(
    ("erasure_correction", "delay_us", "drop"), [(True, 0, 0.02), (True, 2_000, 0.0), (False, 2_000, 0.02)]
)
def test_context__sends_no_parity_elsewhere(erasure_correction: bool, delay_us: float, drop: float) -> None:
    faults = mlt.Faults(drop=drop, delay_us=delay_us, seed=5)
    sent, _ = counters_of_transfers(faults, erasure_correction=erasure_correction)
    assert sent["parity_packets_sent"] == 0


def test_all_reduce__restores_segments_of_the_results_of_a_ring() -> None:
    """They are passed on as they are restored."""

    def calls(context: mlt.Context) -> None:
        for call in range(6):
            tensor = np.full(400_000, context.rank + call, np.float32)
            context.all_reduce(tensor, op=mlt.Reduction.SUM, algorithm="ring")
            assert (tensor == 3 + 3 * call).all()

    options = {"erasure_correction": True, "faults": mlt.Faults(drop=0.02, delay_us=2_000, seed=5), "datapath": "udp"}
    with local_job(3, **options) as ranks, ThreadPoolExecutor(3) as threads:
        list(threads.map(calls, ranks))
        assert sum(rank.counters()["segments_restored"] for rank in ranks) > 0
