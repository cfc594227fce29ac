"""A wait of several seconds says once what it waits for."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from checks import assert_names, until
from transport_jobs import local_job

import mlt
from mlt import _waits
from mlt.job.rendezvous import Endpoint


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "still waiting" in record.getMessage()]


def test_wait__says_after_5_seconds_what_it_waits_for(caplog: pytest.LogCaptureFixture) -> None:
    with local_job(2) as (zero, one), caplog.at_level(logging.WARNING, "mlt"):
        receive = zero.post_recv(np.zeros(4), from_=1, tag=7)
        with pytest.raises(mlt.WaitTimeoutError):
            receive.wait(_waits.QUIET_SECONDS - 2)
        assert lines(caplog) == []
        with pytest.raises(mlt.WaitTimeoutError):
            receive.wait(_waits.QUIET_SECONDS + 1.5)
        (line,) = lines(caplog)
        assert_names(line, "rank 0", "recv", "rank 1", "tag 7", f"{_waits.QUIET_SECONDS} s")
        one.post_send(np.ones(4), to=0, tag=7).wait(10)
        receive.wait(10)


@pytest.mark.parametrize("kind", ["all_reduce", "push_pull", "callback", "await"])
def test_wait__of_every_kind_says_it(
    kind: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_waits, "QUIET_SECONDS", 1)
    with local_job(2, services=1) as (zero, one, _), caplog.at_level(logging.WARNING, "mlt"):

        def call(context: mlt.Context) -> None:
            tensor = np.ones(4, np.float32)
            if kind == "all_reduce":
                context.all_reduce(tensor)
            elif kind == "push_pull":
                mlt.PushPull(context).push_pull(tensor, key=3, name="weights").wait(30)
            else:
                operation = context.post_recv(tensor, from_=1 - context.rank, tag=3)
                if kind == "callback":
                    operation.add_done_callback(lambda _: None)
                context.post_send(np.ones(4, np.float32), to=1 - context.rank, tag=3)
                if kind == "callback":
                    operation.wait(30)
                else:
                    asyncio.run(asyncio.wait_for(ended(operation), 30))

        async def ended(operation: mlt.Operation) -> None:
            await operation

        early = threading.Thread(target=call, args=(zero,))
        early.start()
        until(lambda: bool(lines(caplog)), seconds=20)
        call(one)
        early.join()
        (line,) = lines(caplog)
        assert_names(
            line, "rank 0", "1 s", {"all_reduce": "all_reduce", "push_pull": "key 3 (weights)"}.get(kind, "tag 3")
        )


@pytest.mark.parametrize("elements", [4, 1_000_000])
def test_wait__of_a_collective_names_the_ranks_that_have_not_called(
    elements: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_waits, "QUIET_SECONDS", 1)
    with local_job(3) as contexts, caplog.at_level(logging.WARNING, "mlt"):
        calls = [
            threading.Thread(target=context.all_reduce, args=(np.ones(elements, np.float32),)) for context in contexts
        ]
        for call in calls[:2]:
            call.start()
        until(lambda: len(lines(caplog)) == 2, seconds=20)
        calls[2].start()
        for call in calls:
            call.join()
        own = [line for line in lines(caplog) if "all_reduce" in line]
        # A ring passes on what it has: rank 0 waits for rank 2 there, and rank 1 for what rank 0 waits for.
        of_0 = next(line for line in own if line.startswith("rank 0"))
        assert_names(of_0, "rank 2 is connected, but did not call it yet, or waits for further ranks")
        assert_names(
            next(line for line in own if line.startswith("rank 1")), "rank 2 is" if elements == 4 else "rank 0 is"
        )


def test_wait__of_a_collective_for_several_ranks_is_a_sentence(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_waits, "QUIET_SECONDS", 1)
    with local_job(3) as contexts, caplog.at_level(logging.WARNING, "mlt"):
        calls = [threading.Thread(target=context.all_reduce, args=(np.ones(4, np.float32),)) for context in contexts]
        calls[0].start()
        until(lambda: lines(caplog), seconds=20)
        for call in calls[1:]:
            call.start()
        for call in calls:
            call.join()
        assert_names(lines(caplog)[0], "ranks 1, 2 are connected, but did not call it yet, or wait for further ranks")


@pytest.mark.parametrize("ranks", [4, 17], ids=["direct", "central"])
def test_awaited_ranks__of_a_small_all_reduce_are_those_that_have_not_called(ranks: int) -> None:
    with local_job(ranks) as contexts:
        late = contexts[-2]
        tensors = [np.ones(4, np.float32) for _ in contexts]
        calls = {
            context.rank: context.post_all_reduce(tensor)
            for context, tensor in zip(contexts, tensors, strict=True)
            if context is not late
        }
        first = contexts[0].engine
        until(lambda: first.awaited_ranks(calls[0].id) == [late.rank])
        # In a large group the first rank sends the result: all others wait for that.
        waits_for = late.rank if ranks == 4 else 0
        until(lambda: waits_for in contexts[1].engine.awaited_ranks(calls[1].id))
        calls[late.rank] = late.post_all_reduce(tensors[late.rank])
        for call in calls.values():
            call.wait(30)
        assert first.awaited_ranks(calls[0].id) == []


def test_expect_idle__waits_without_a_line(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_waits, "QUIET_SECONDS", 1)
    with local_job(2) as (zero, one), caplog.at_level(logging.WARNING, "mlt"):
        receive = zero.post_recv(np.zeros(4), from_=1).expect_idle()
        with pytest.raises(mlt.WaitTimeoutError):
            receive.wait(2.5)
        one.post_send(np.ones(4), to=0).wait(10)
        receive.wait(10)
        assert lines(caplog) == []


def test_report_if_slow__says_it_once_and_only_of_what_is_in_progress(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_waits, "QUIET_SECONDS", 1)
    with local_job(2) as (zero, one), caplog.at_level(logging.WARNING, "mlt"):
        for tag in range(20):
            done = zero.post_recv(np.zeros(4), from_=1, tag=tag)
            done.report_if_slow()
            one.post_send(np.ones(4), to=0, tag=tag).wait(10)
            done.wait(10)
        slow = zero.post_recv(np.zeros(4), from_=1, tag=99)
        slow.report_if_slow()
        zero.post_recv(np.zeros(4), from_=1, tag=98).report_if_slow()  # no variable holds it
        until(lambda: bool(lines(caplog)))
        until(lambda: not any(thread.name == "mlt-slow-operations" for thread in threading.enumerate()))
        (line,) = lines(caplog)
        assert_names(line, "tag 99", "rank 1 is connected")


def test_cause__names_a_peer_that_left() -> None:
    with local_job(2) as (zero, one):
        assert _waits._cause(zero, 1) == ""
        one.close()
        until(lambda: not zero.is_peer_up(1))
        assert "rank 1" in _waits._cause(zero, 1)


def engine_of(**counts: int) -> SimpleNamespace:
    """An engine of a rank to which rank 3 alone is connected."""
    counters = {f"control_{name}": counts.get(name, 0) for name in ("accepted", "unidentified", "unproved")}
    return SimpleNamespace(
        is_peer_up=lambda rank: rank == 3,
        peer_failure=lambda rank: "",
        counters=lambda: {**counters, "control_other_version": 0},
    )


def test_connect__names_the_connections_that_are_missing(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_waits, "QUIET_SECONDS", 0.05)
    table = [Endpoint(rank, f"10.0.0.{rank}", 4000 + rank) for rank in range(4)]
    with local_job(2) as (zero, _), caplog.at_level(logging.WARNING, "mlt"):
        with _waits.ConnectWatch(zero, table[:2], 60.0):
            time.sleep(0.2)  # that is the subject: nothing is missing
        assert lines(caplog) == []
    engine = engine_of(accepted=1)
    with caplog.at_level(logging.WARNING, "mlt"):
        with _waits.ConnectWatch(cast(Any, SimpleNamespace(rank=1, engine=engine)), table, 60.0):
            until(lambda: bool(lines(caplog)))
        (line,) = lines(caplog)
        # The higher rank connects to the lower.
        assert_names(line, "rank 1: ", "its TCP connection to rank 0 at 10.0.0.0:4000", "60 s", "let TCP pass")
        assert_names(line, "for the TCP connection of rank 2 (10.0.0.2) to 10.0.0.1:4001", "these ports")
        assert "rank 3" not in line
        assert "stopped" not in line


@pytest.mark.parametrize("changed", [{"accepted": 2}, {"accepted": 5, "unproved": 2, "unidentified": 1}])
def test_connect__a_connection_that_arrived_is_of_a_stopped_process_and_no_firewalls(
    changed: dict[str, int], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_waits, "QUIET_SECONDS", 0.05)
    table = [Endpoint(rank, f"10.0.0.{rank}", 4000 + rank) for rank in range(1, 4)]
    context = cast(Any, SimpleNamespace(rank=1, engine=engine_of(**changed)))
    with caplog.at_level(logging.WARNING, "mlt"), _waits.ConnectWatch(context, table, 60.0):
        until(lambda: bool(lines(caplog)))
    (line,) = lines(caplog)
    assert_names(line, "TCP connection of rank 2 (10.0.0.2)", "10.0.0.1:4001", "60 s", "has arrived", "stopped")
    assert "firewall" not in line


def test_connect__names_both_causes_where_fewer_connections_arrived_than_are_missing(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_waits, "QUIET_SECONDS", 0.05)
    table = [Endpoint(rank, f"10.0.0.{rank}", 4000 + rank) for rank in range(1, 6)]
    context = cast(Any, SimpleNamespace(rank=1, engine=engine_of(accepted=2)))
    with caplog.at_level(logging.WARNING, "mlt"), _waits.ConnectWatch(context, table, 60.0):
        until(lambda: bool(lines(caplog)))
    (line,) = lines(caplog)
    assert_names(line, "rank 2 (10.0.0.2)", "rank 5 (10.0.0.5)", "stopped", "firewall")
