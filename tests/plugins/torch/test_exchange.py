"""The transfers of one collective, and the tags they take."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import torch
from mlt.torch import process_group
from mlt.torch.exchange import Exchange
from mlt.torch.process_group import MltProcessGroup

import mlt


class Done:
    """A transfer that ended at once."""

    def done(self) -> bool:
        return True

    def wait(self, timeout: float | None = None) -> None:
        pass


class Recorder:
    """Notes the tags of what is posted; every transfer ends at once."""

    def __init__(self) -> None:
        self.tags: set[int] = set()

    def post_send(self, data: Any, *, to: int, tag: int, timeout: float) -> Done:
        self.tags.add(tag)
        return Done()

    def post_recv(self, data: Any, loss_bound: float, *, from_: int, tag: int, timeout: float) -> Done:
        self.tags.add(tag)
        return Done()

    def wait(self, operation: Done, timeout: float) -> None:
        pass

    def close(self) -> None:
        pass


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


def group_of_two(context: Any) -> MltProcessGroup:
    return MltProcessGroup(context, rank=0, ranks=(0, 1), group_id="7", timeout=timedelta(seconds=30))


def test_collectives__go_round_a_bounded_set_of_tags() -> None:
    recorder = Recorder()
    group = group_of_two(recorder)
    works = [group.allgather([[torch.ones(1)] * 2] * 3, [torch.ones(1)] * 3) for _ in range(2_000)]
    works[-1].wait()
    for _ in range(100):
        group.send([torch.ones(1)], 1, 5).wait()
    group.shutdown()
    # 256 of the ring, and the one of the sends: never one per call.
    assert 1 < len(recorder.tags) <= 257
    assert max(recorder.tags) < 2**63


def test_group_number__tells_groups_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_group, "_group_names", {})
    names = [*map(str, range(3_000)), *(f"group {i}" for i in range(3_000))]
    assert len({process_group._group_number(name) for name in names}) == len(names)
    taken = process_group._group_number("hashed")
    process_group._group_names[taken] = "another"
    with pytest.raises(ValueError, match="'another' and 'hashed'"):
        process_group._group_number("hashed")
