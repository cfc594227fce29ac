"""The transfers of one collective."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from mlt.torch.exchange import Exchange

import mlt


class Failing:
    """The first wait fails; every further transfer goes on until it is cancelled."""

    def __init__(self) -> None:
        self.posted = 0
        self.running: set[int] = set()
        self.waited: list[int] = []

    def post_recv(self, data: Any, loss_bound: float, *, from_: int, tag: int, timeout: float) -> int:
        self.posted += 1
        self.running.add(self.posted)
        return self.posted

    def cancel(self, operation: int) -> None:
        self.running.discard(operation)

    def wait(self, operation: int, timeout: float | None = None) -> None:
        self.waited.append(operation)
        if len(self.waited) == 1:
            self.running.discard(operation)
            raise mlt.PeerFailedError("rank 1 died")
        assert operation not in self.running, "waited for a transfer that nobody cancelled"
        raise mlt.CancelledError("cancelled")


def test_finish__leaves_no_receive_posted_after_a_failure() -> None:
    context = Failing()
    exchange = Exchange(context, (0, 1, 2, 3), tag=1, timeout=30)  # type: ignore[arg-type]
    for peer in (1, 2, 3):
        exchange.recv(torch.zeros(4), peer)
    with pytest.raises(mlt.PeerFailedError, match="rank 1 died"):
        exchange.finish()
    assert context.running == set()
    assert set(context.waited) == {1, 2, 3}
