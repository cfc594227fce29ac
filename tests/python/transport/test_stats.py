"""``Context.stats()``: operations by kind, whoever takes their completions, counters, and peers."""

from __future__ import annotations

import asyncio
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import FrozenInstanceError

import numpy as np
import pytest
from checks import until
from transport_jobs import ETHERNET_SEGMENT, local_job

import mlt
from mlt.stats import OperationStats


def both(contexts: list[mlt.Context], function: object, *arguments: object) -> list[object]:
    with ThreadPoolExecutor(len(contexts)) as threads:
        return list(threads.map(lambda context: function(context, *arguments), contexts))  # type: ignore[operator]


def count(context: mlt.Context, kind: str) -> int:
    found = context.stats().operations.get(kind)  # type: ignore[call-overload]
    return 0 if found is None else int(found.count)


def test_stats__counts_every_way_to_take_a_completion_once() -> None:
    with local_job(2) as (sender, receiver):
        receiver.stats()
        buffers = [bytearray(8) for _ in range(8)]
        receives = [receiver.post_recv(one, from_=0, tag=n) for n, one in enumerate(buffers)]
        called = threading.Event()
        receives[4].add_done_callback(lambda _: called.set())
        receives[5].add_done_callback(lambda _: None)
        sends = [sender.post_send(bytes(8), to=1, tag=n) for n in range(8)]
        receiver.wait(receives[0])
        receiver.wait_all(receives[1:3])
        assert called.wait(30)

        async def wait() -> None:
            await receives[3]

        asyncio.run(wait())
        receiver.wait(receives[5])
        receiver.wait_all([receives[5]])  # a second wait for one with a callback takes nothing
        taken: list[mlt.Completion] = []
        until(lambda: taken.extend(receiver.poll_cq()) or len(taken) == 2)  # type: ignore[func-returns-value]
        assert count(receiver, "recv") == 8
        assert sender.wait_all(sends)
        assert count(sender, "send") == 0  # recorded from the first call on
        found = receiver.stats().operations["recv"]
        assert found.statuses == {"complete": 8}
        assert (found.bytes, found.missing_bytes, found.failed, found.late) == (64, 0, 0, 0)
        assert sum(number for _, number in found.histogram) == 8


def test_stats__collectives_by_their_names_and_times() -> None:
    with local_job(2) as contexts:
        both(contexts, mlt.Context.stats)
        for _ in range(3):
            done = both(contexts, mlt.Context.all_reduce, np.ones(1000, np.float32))
        both(contexts, mlt.Context.barrier)
        operations = contexts[0].stats().operations
        assert set(operations) == {"all_reduce", "barrier"}
        assert (operations["all_reduce"].count, operations["all_reduce"].bytes) == (3, 12_000)
        last = done[0].elapsed_ns / 1e9  # type: ignore[attr-defined]
        assert operations["all_reduce"].seconds > last
        assert operations["all_reduce"].quantile(1) > last


def test_stats__push_pulls_and_services() -> None:
    with local_job(2, services=1) as contexts:
        both(contexts, mlt.Context.stats)
        both(contexts[:2], lambda context: mlt.PushPull(context).push_pull(np.ones(100, np.float32), key=1).wait())
        found = contexts[0].stats()
        assert (found.world_size, found.services, len(found.peers)) == (2, 1, 2)
        assert found.operations["push_pull"].bytes == 400
        service = contexts[2].stats()
        assert service.operations == {}  # a service posts nothing itself
        assert service.counters["data_bytes_received"] > 0


def test_stats__missing_late_repaired_and_failed() -> None:
    faults = mlt.Faults(drop=0.05, seed=11)
    with local_job(2, faults=faults, segment_bytes=ETHERNET_SEGMENT) as (sender, receiver):
        both([sender, receiver], mlt.Context.stats)
        exact, lossy = np.empty(200_000, np.float32), np.empty(200_000, np.float32)
        receives = [receiver.post_recv(exact, from_=0), receiver.post_recv(lossy, 0.2, from_=0, tag=1)]
        sends = [sender.post_send(np.ones(200_000, np.float32), to=1, tag=tag) for tag in range(2)]
        done = receiver.wait_all(receives)
        ends = sender.wait_all(sends)
        received, sent = receiver.stats().operations["recv"], sender.stats().operations["send"]
        assert received.missing_bytes == sum(one.missing_bytes for one in done) > 0
        assert received.repaired_segments == sum(one.repairs for one in done) > 0
        assert sent.repaired_segments == sum(one.repairs for one in ends) > 0
        assert received.seconds == pytest.approx(sum(one.elapsed_ns for one in done) / 1e9)
        late = receiver.post_recv(np.empty(4, np.float32), 0.5, from_=0, tag=2, deadline=0.01)
        failed = receiver.post_recv(bytearray(4), from_=0, tag=3, timeout=0.01)
        receiver.wait_all([late, failed], raise_failed=False)
        found = receiver.stats().operations["recv"]
        assert (found.count, found.late, found.failed) == (4, 1, 1)
        assert found.statuses["timed_out"] == 1
        assert found.bytes == received.bytes + 16  # without the failed one


def test_stats__peers_of_a_job_and_after_its_end() -> None:
    with local_job(2) as contexts:
        (peer,) = contexts[0].stats().peers
        assert (peer.rank, peer.is_up, peer.has_left, peer.failure) == (1, True, False, None)
        assert [path.path for path in peer.paths] == [0]
        contexts[1].close()
        until(lambda: contexts[0].stats().peers[0].has_left)
        contexts[0].close()
        after = contexts[0].stats()
        assert not after.peers[0].is_up
        assert after.counters == contexts[0].counters()


def test_stats__connect_to_no_peer() -> None:
    with local_job(2, connects_on_use=True) as contexts:
        (peer,) = contexts[0].stats().peers
        assert (peer.is_up, peer.rate_gbps) == (False, 0)
        assert contexts[0].counters()["control_connect_attempts"] == 0


def test_stats__are_frozen_and_go_into_json() -> None:
    with local_job(2) as contexts:
        both(contexts, mlt.Context.stats)
        both(contexts, mlt.Context.barrier)
        found = contexts[0].stats()
        with pytest.raises(FrozenInstanceError):
            found.rank = 1  # type: ignore[misc]
        text = json.loads(json.dumps(found.as_dict()))
        assert text["operations"]["barrier"]["count"] == 1
        assert text["peers"][0]["paths"][0]["path"] == 0
        assert found.recorded_seconds > 0


def test_stats__threads_lose_no_operation() -> None:
    with local_job(2) as (sender, receiver):
        both([sender, receiver], mlt.Context.stats)

        def exchange(thread: int) -> None:
            for n in range(100):
                receive = receiver.post_recv(bytearray(8), from_=0, tag=1_000 * thread + n)
                sender.post_send(bytes(8), to=1, tag=1_000 * thread + n).wait()
                receive.wait()

        with ThreadPoolExecutor(4) as threads:
            list(threads.map(exchange, range(4)))
        assert (count(sender, "send"), count(receiver, "recv")) == (400, 400)


def test_quantile__is_the_bound_of_the_bucket() -> None:
    one = OperationStats(
        count=4, statuses={"complete": 4}, bytes=0, missing_bytes=0, repaired_segments=0, seconds=0.0,
        histogram=((1.0, 3), (2.0, 0), (4.0, 1)),
    )  # fmt: skip
    assert [one.quantile(fraction) for fraction in (0, 0.5, 0.75, 0.76, 1)] == [1, 1, 1, 4, 4]
    nothing = OperationStats(
        count=0, statuses={}, bytes=0, missing_bytes=0, repaired_segments=0, seconds=0, histogram=()
    )
    assert nothing.quantile(0.5) == 0
