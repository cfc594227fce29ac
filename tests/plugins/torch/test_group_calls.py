"""The collectives of a group in progress: their order, their tags, and what a failure or the end does to later ones."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import pytest
import torch
from checks import names
from mlt.torch.group_calls import GroupCalls
from mlt.torch.work import CallQueue

from mlt.errors import PeerFailedError

LIMIT = timedelta(seconds=30)


class Done:
    """A transfer that ended at once."""

    def done(self) -> bool:
        return True

    def wait(self, timeout: float | None = None) -> None:
        pass


@pytest.fixture
def calls() -> Iterator[GroupCalls]:
    publisher = CallQueue("publisher")
    found = GroupCalls(own=0, name="7", publisher=publisher)
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

    def program() -> None:
        assert may_end.wait(LIMIT.total_seconds())
        order.append("program")

    calls.start("allreduce", post_of("first"), [torch.ones(1)])
    assert order == ["first"]
    calls.submit("gather", program, [])
    last = calls.start("allreduce", post_of("last"), [torch.ones(1)])
    assert order == ["first"]
    may_end.set()
    assert last.wait(LIMIT)
    assert order == ["first", "program", "last"]


def test_submit__names_a_failed_program_and_runs_the_next(calls: GroupCalls) -> None:
    def fail() -> None:
        raise ValueError("rank 1 has another shape")

    failed = calls.submit("allreduce", fail, [])
    with pytest.raises(RuntimeError, match=names("mlt allreduce", "call 1", "'7'", "rank 0", "another shape")):
        failed.wait(LIMIT)
    assert calls.submit("allreduce", lambda: None, []).wait(LIMIT)


@pytest.mark.parametrize(
    ("tensors", "also_uses", "text"),
    [
        ([torch.zeros(3, 4, dtype=torch.float64)], [], "broadcast of float64[3, 4] (call 1 "),
        (
            [torch.zeros(2), torch.zeros(1, dtype=torch.int32)],
            [],
            "broadcast of 2 tensors, the first float32[2] (call 1 ",
        ),
        ([], [torch.zeros(5, dtype=torch.bool)], "broadcast of bool[5] (call 1 "),  # a gather's, beside the root
        ([], [], "broadcast (call 1 "),
    ],
)
def test_start__an_error_names_the_tensors_as_the_program_gave_them(
    calls: GroupCalls, tensors: list[torch.Tensor], also_uses: list[torch.Tensor], text: str
) -> None:
    def post(_: Sequence[Any]) -> list[Any]:
        raise PeerFailedError("rank 0: broadcast of 96 bytes of uint8: rank 1 died", peer=1)

    work = calls.start("broadcast", post, tensors, also_uses=also_uses)
    with pytest.raises(RuntimeError, match=names(f"mlt {text}", "rank 1 died")):
        work.wait(LIMIT)


def test_start__waits_for_a_call_that_reads_its_memory(calls: GroupCalls) -> None:
    class Open(Done):
        ended = False

        def done(self) -> bool:
            return self.ended

        def wait(self, timeout: float | None = None) -> None:
            assert may_end.wait(LIMIT.total_seconds())
            self.ended = True

    may_end, posted, read = threading.Event(), threading.Event(), torch.ones(1)
    calls.start("gather", lambda _: [Open()], [], also_uses=[read])

    def post(_: Sequence[Any]) -> list[Any]:
        posted.set()
        return [Done()]

    later = calls.start("broadcast", post, [read])
    assert not posted.is_set()
    may_end.set()
    assert later.wait(LIMIT)
    assert posted.is_set()


def test_close__rejects_later_calls(calls: GroupCalls) -> None:
    assert not calls.is_closed
    calls.close()
    assert calls.is_closed
    with pytest.raises(RuntimeError, match=names("allreduce", "'7'", "shut down", "rank 0")):
        calls.start("allreduce", lambda _: [], [torch.ones(1)])
    with pytest.raises(RuntimeError, match=names("gather", "shut down")):
        calls.submit("gather", lambda: None, [])
