"""Completions: polled, waited for, timed out, cancelled; other threads and signals get their turn meanwhile."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time

import numpy as np
import pytest
from checks import until
from transport_jobs import exchange_pending, local_job, takes

import mlt


def test_poll_cq__takes_completions_and_never_blocks(clean: list[mlt.Context]) -> None:
    a, b = clean
    with takes(at_most=0.2):
        assert b.poll_cq() == []
    landings = [np.zeros(10, np.float32) for _ in range(10)]
    receives = {b.post_recv(landing, from_=0, tag=100 + i) for i, landing in enumerate(landings)}
    for i in range(10):
        a.post_send(np.full(10, i, np.float32), to=1, tag=100 + i)
    done: list[mlt.Completion] = []

    def take() -> bool:
        batch = b.poll_cq(max_completions=3)
        assert len(batch) <= 3
        done.extend(batch)
        return len(done) >= 10

    until(take, 10, every=0.001)
    assert {one.op for one in done} == receives
    assert [landing[0] for landing in landings] == list(range(10))
    until(lambda: not len(a.poll_cq()) + a.engine.pinned, 10, every=0.001)
    assert a.engine.pinned == b.engine.pinned == 0


def test_wait__of_another_type_names_the_expected_type(clean: list[mlt.Context]) -> None:
    for wrong in (5, None, "send"):
        with pytest.raises(TypeError, match=r"Operation .*post_\*"):
            clean[0].wait(wrong)  # type: ignore[arg-type]


def test_wait__timeout_leaves_the_operation_running(clean: list[mlt.Context]) -> None:
    into = np.zeros(100, np.float32)
    receive = clean[1].post_recv(into, from_=0, tag=31)
    with takes(at_least=0.25, at_most=1.0), pytest.raises(mlt.WaitTimeoutError, match=r"rank 1.*rank 0, tag 31"):
        clean[1].wait(receive, timeout=0.25)
    send = clean[0].post_send(np.ones(100, np.float32), to=1, tag=31)
    assert clean[1].wait(receive, timeout=10).status == "complete"
    clean[0].wait(send)
    assert into.all()


def test_wait__lets_other_threads_run(clean: list[mlt.Context]) -> None:
    turns = 0
    stop = threading.Event()

    def count() -> None:
        nonlocal turns
        while not stop.is_set():
            turns += 1

    receive = clean[1].post_recv(np.zeros(4, np.float32), from_=0, tag=32)
    thread = threading.Thread(target=count)
    thread.start()
    before = turns
    with pytest.raises(mlt.WaitTimeoutError):
        clean[1].wait(receive, timeout=0.4)
    after = turns
    stop.set()
    thread.join()
    # Had the wait held the GIL, the other thread would not have had one turn in its 0.4 s.
    assert after - before > 1_000
    exchange_pending(clean, receive, 32)


def test_wait__can_be_interrupted_by_signals(clean: list[mlt.Context]) -> None:
    class Interrupted(Exception):
        pass

    def interrupt(*_: object) -> None:
        raise Interrupted

    receive = clean[1].post_recv(np.zeros(4, np.float32), from_=0, tag=33)
    previous = signal.signal(signal.SIGUSR1, interrupt)
    try:
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGUSR1)).start()
        with takes(at_most=2.0), pytest.raises(Interrupted):
            clean[1].wait(receive, timeout=20)
    finally:
        signal.signal(signal.SIGUSR1, previous)
    exchange_pending(clean, receive, 33)


def test_wait__gets_its_completion_although_another_thread_polls(clean: list[mlt.Context]) -> None:
    stop = threading.Event()
    polled: list[mlt.Completion] = []

    def poll() -> None:
        while not stop.is_set():
            polled.extend(clean[1].poll_cq())

    thread = threading.Thread(target=poll)
    thread.start()
    try:
        for _ in range(20):
            receive = clean[1].post_recv(np.zeros(4, np.float32), from_=0, tag=34)
            # Around the 100 ms after which a wait on the main thread looks for signals.
            timer = threading.Timer(0.1, clean[0].post_send, (np.ones(4, np.float32),), {"to": 1, "tag": 34})
            timer.start()
            assert receive.wait(10).status == "complete"
            timer.join()
    finally:
        stop.set()
        thread.join()
    assert polled == []


def test_wait__twice_is_rejected(clean: list[mlt.Context]) -> None:
    receive = clean[1].post_recv(np.zeros(4, np.float32), from_=0, tag=35)
    exchange_pending(clean, receive, 35)
    with pytest.raises(mlt.UnknownOperationError, match="rank 1"):
        receive.wait()


def test_operation__timeout_fails_it_in_time(clean: list[mlt.Context]) -> None:
    landing = bytearray(400)
    receive = clean[1].post_recv(landing, from_=0, tag=36, timeout=0.3)
    with takes(at_least=0.25, at_most=1.5), pytest.raises(mlt.OperationTimeoutError, match=r"rank 1.*tag 36") as caught:
        receive.wait()
    assert caught.value.completion is not None
    assert (caught.value.completion.status, caught.value.peer) == ("timed_out", 0)
    landing.extend(b"ours again")


def test_operation__cancel_ends_it(clean: list[mlt.Context]) -> None:
    receive = clean[1].post_recv(bytearray(400), from_=0, tag=37)
    receive.cancel()
    with takes(at_most=1.0), pytest.raises(mlt.CancelledError, match="tag 37"):
        receive.wait(5)


def test_callback__of_a_receive_is_called_and_the_operation_waited_for_twice(clean: list[mlt.Context]) -> None:
    called: list[mlt.Operation] = []
    ended = threading.Event()

    def note(op: mlt.Operation) -> None:
        called.append(op)
        assert op.wait().bytes == 16
        ended.set()

    receive = clean[1].post_recv(np.zeros(4, np.float32), from_=0, tag=50)
    receive.add_done_callback(note)
    assert not receive.done()
    assert called == []
    clean[0].post_send(np.ones(4, np.float32), to=1, tag=50).wait(10)
    assert ended.wait(10)
    assert called == [receive]
    assert receive.done()
    assert receive.wait().status == "complete"
    assert clean[1].poll_cq() == []
    receive.add_done_callback(note)
    assert called == [receive, receive]


def test_callback__is_called_though_another_thread_waits(clean: list[mlt.Context]) -> None:
    receive = clean[1].post_recv(np.zeros(4, np.float32), from_=0, tag=51)
    done: list[mlt.Completion] = []
    thread = threading.Thread(target=lambda: done.append(receive.wait(20)))
    thread.start()
    time.sleep(0.05)  # the thread waits by then, which nothing shows
    ended = threading.Event()
    receive.add_done_callback(lambda _: ended.set())
    clean[0].post_send(np.ones(4, np.float32), to=1, tag=51).wait(10)
    assert ended.wait(10)
    thread.join()
    assert done[0].op == receive


def test_callback__after_the_completion_was_taken_is_rejected(clean: list[mlt.Context]) -> None:
    receive = clean[1].post_recv(np.zeros(4, np.float32), from_=0, tag=52)
    exchange_pending(clean, receive, 52)
    assert receive.done()
    with pytest.raises(mlt.UnknownOperationError, match=r"rank 1.*tag 52"):
        receive.add_done_callback(lambda _: None)


def test_await__gives_the_completion_or_its_error(clean: list[mlt.Context]) -> None:
    async def exchange() -> tuple[mlt.Completion, ...]:
        receives = [clean[1].post_recv(np.zeros(4, np.float32), from_=0, tag=53 + i) for i in range(2)]
        sends = [clean[0].post_send(np.ones(4, np.float32), to=1, tag=53 + i) for i in range(2)]

        async def end(op: mlt.Operation) -> mlt.Completion:
            return await op

        return tuple(await asyncio.gather(*(end(op) for op in (*receives, *sends))))

    assert [one.status for one in asyncio.run(asyncio.wait_for(exchange(), 20))] == ["complete"] * 4

    async def fail() -> None:
        await clean[1].post_recv(np.zeros(4, np.float32), from_=0, tag=55, timeout=0.1)

    with pytest.raises(mlt.OperationTimeoutError, match="tag 55"):
        asyncio.run(fail())


def test_callback__of_an_operation_that_close_ends_is_called() -> None:
    with local_job(2) as contexts:
        ended = threading.Event()
        receive = contexts[1].post_recv(np.zeros(4, np.float32), from_=0, tag=1)
        receive.add_done_callback(lambda _: ended.set())
        late = contexts[1].post_recv(np.zeros(4, np.float32), from_=0, tag=2)
        contexts[1].close()
        assert ended.wait(10)
        called = threading.Event()
        late.add_done_callback(lambda _: called.set())
        assert called.wait(10)
        with pytest.raises(mlt.CancelledError):
            late.wait()
