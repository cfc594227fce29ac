"""The collectives of a group in progress: their order, their tags, and what a failure or the end does to later ones."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import pytest
import torch
from checks import names
from mlt.torch.exchange import Exchange
from mlt.torch.group_calls import GroupCalls
from mlt.torch.process_group import MltProcessGroup
from mlt.torch.work import CallQueue

LIMIT = timedelta(seconds=30)


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


@pytest.fixture
def calls() -> Iterator[GroupCalls]:
    publisher = CallQueue("publisher")
    found = GroupCalls(Recorder(), (0, 1), own=0, name="7", tag=1 << 40, publisher=publisher)  # type: ignore[arg-type]
    yield found
    found.close()
    publisher.close()


def test_start__posts_at_once_but_after_queued_programs(calls: GroupCalls) -> None:
    order: list[str] = []
    may_end = threading.Event()

    def post_of(name: str) -> Callable[[Sequence[Any]], list[Any]]:
        def post(landings: Sequence[Any]) -> list[Any]:
            assert [landing.data.tolist() for landing in landings] == [[1.0]]
            order.append(name)
            return [Done()]

        return post

    def program(exchange: Exchange) -> None:
        assert may_end.wait(LIMIT.total_seconds())
        order.append("program")

    calls.start("allreduce", post_of("first"), [torch.ones(1)])
    assert order == ["first"]
    calls.submit("gather", program, [], LIMIT.total_seconds())
    last = calls.start("allreduce", post_of("last"), [torch.ones(1)])
    assert order == ["first"]
    may_end.set()
    assert last.wait(LIMIT)
    assert order == ["first", "program", "last"]


def test_submit__after_a_failed_program_names_its_failure(calls: GroupCalls) -> None:
    def fail(exchange: Exchange) -> None:
        raise ValueError("rank 1 has another shape")

    failed = calls.submit("gather", fail, [], 1.0)
    with pytest.raises(RuntimeError, match=names("mlt gather", "call 0", "'7'", "rank 0", "another shape")):
        failed.wait(LIMIT)
    later = calls.submit("scatter", lambda _: None, [], 1.0)
    with pytest.raises(RuntimeError, match=names("mlt scatter", "call 1", "another shape", "process group")):
        later.wait(LIMIT)


def test_close__rejects_later_calls(calls: GroupCalls) -> None:
    assert not calls.is_closed
    calls.close()
    assert calls.is_closed
    with pytest.raises(RuntimeError, match=names("allreduce", "'7'", "shut down", "rank 0")):
        calls.start("allreduce", lambda _: [], [torch.ones(1)])
    with pytest.raises(RuntimeError, match=names("gather", "shut down")):
        calls.submit("gather", lambda _: None, [], 1.0)


def group_of_two(context: Any) -> MltProcessGroup:
    return MltProcessGroup(context, rank=0, ranks=(0, 1), group_id="7", timeout=timedelta(seconds=30))


def test_collectives__go_round_a_bounded_set_of_tags() -> None:
    recorder = Recorder()
    group = group_of_two(recorder)
    works = [group.allgather([[torch.ones(1), torch.ones(2)]] * 3, [torch.ones(1)] * 3) for _ in range(2_000)]
    works[-1].wait()
    for _ in range(100):
        group.send([torch.ones(1)], 1, 5).wait()
    group.shutdown()
    # 256 of the ring, and the one of the sends: never one per call.
    assert 1 < len(recorder.tags) <= 257
    assert max(recorder.tags) < 2**63
