"""Workers that die, hang or come late: the sums continue without them within the bounds that the user sets."""

from __future__ import annotations

import hashlib
import logging
import re
import signal
import subprocess
import sys
from multiprocessing.connection import Connection

import numpy as np
import pytest
from checks import assert_names, strike, until
from launch_jobs import KILL_SERVICE, launch
from test_serve_command import COMMAND, environment
from transport_jobs import START_SECONDS, RankProcess, local_job, open_rank, process_job, takes

import mlt
from mlt._shared.ports import free_port

PEER_TIMEOUT = 1.0
WORKERS, MANY = 3, 500_000


def member(pipe: Connection, rank: int, port: int, max_dead_workers: int, max_wait: float | None) -> None:
    """Three workers and a service. A worker averages once for each "push", and sends how that ended."""
    times = {"peer_timeout": PEER_TIMEOUT, "suspended_timeout": PEER_TIMEOUT}
    with open_rank(rank, port, workers=WORKERS, services=1, **times) as context:
        if rank == WORKERS:
            service = mlt.SummationService(context, max_dead_workers=max_dead_workers, max_wait=max_wait)
            pipe.send("ready")
            service.run()
            counters = context.counters()
            pipe.send((counters["push_pull_workers_gone"], counters["summation_late_pushes"]))
            return
        push_pull = mlt.PushPull(context)
        pipe.send("ready")
        step = 0
        while (bound := pipe.recv()) is not None:
            tensor = np.full(MANY, 10.0 * step + rank, np.float32)
            try:
                done = push_pull.push_pull(tensor, key=1, loss_bound=bound).wait(20)
                pipe.send((hashlib.sha256(tensor).hexdigest(), float(tensor[0]), done.missing_bytes))
            except mlt.MltError as error:
                pipe.send(error)
                return
            step += 1


def push(ranks: list[RankProcess], bound: float = 0.0) -> list[float]:
    """One average of these ranks: the same bits everywhere; its first element."""
    for one in ranks:
        one.say(bound)
    results = [one.hear() for one in ranks]
    assert len({digest for digest, *_ in results}) == 1
    return [results[0][1], *(missing for *_, missing in results)]


@pytest.mark.parametrize("blow", [signal.SIGKILL, signal.SIGSTOP])
def test_push_pull__continues_without_a_worker_that_is_killed_or_hangs(blow: signal.Signals) -> None:
    with process_job(member, WORKERS + 1, 1, None) as ranks:
        assert [one.hear() for one in ranks] == ["ready"] * 4
        assert push(ranks[:3]) == [1.0, 0, 0, 0]
        pid = ranks[2].process.pid
        assert pid is not None
        for one in ranks[:2]:
            one.say(0.0)  # in flight, and waits for rank 2
        with takes(at_most=PEER_TIMEOUT + 4):
            strike(pid, blow)
            results = [one.hear() for one in ranks[:2]]
        assert results[0] == results[1]
        assert results[0][1] == 10.5
        for step in range(2, 6):
            assert push(ranks[:2]) == [10 * step + 0.5, 0, 0]
        for one in ranks[:2]:
            one.say(None)
        assert ranks[3].hear() == (3, 0)  # the others have left


def test_push_pull__names_all_dead_workers_beyond_the_bound() -> None:
    with process_job(member, WORKERS + 1, 1, None) as ranks:
        assert [one.hear() for one in ranks] == ["ready"] * 4
        push(ranks[:3])
        ranks[2].process.kill()
        assert push(ranks[:2]) == [10.5, 0, 0]
        ranks[0].say(0.0)
        ranks[1].process.kill()
        with takes(at_most=5), pytest.raises(mlt.PeerFailedError) as caught:
            ranks[0].hear()
        assert caught.value.peer == 1
        assert_names(str(caught.value), "rank 1", "before it", "rank 2")


def test_push_pull__does_not_wait_for_a_late_worker_longer_than_max_wait() -> None:
    with process_job(member, WORKERS + 1, 0, 0.2) as ranks:
        assert [one.hear() for one in ranks] == ["ready"] * 4
        push(ranks[:3], 0.4)
        with takes(at_most=5):
            assert push(ranks[:2], 0.4) == [10.5, 0, 0]
        assert push(ranks[2:3], 0.4) == [10.5, 4 * MANY]  # late, and still with the others' result
        assert push(ranks[:3], 0.4) == [21.0, 0, 0, 0]
        for one in ranks[:3]:
            one.say(None)
        assert ranks[3].hear()[1] == 1


def test_push_pull__that_may_lose_nothing_names_the_late_worker() -> None:
    with process_job(member, WORKERS + 1, 0, 0.2) as ranks:
        assert [one.hear() for one in ranks] == ["ready"] * 4
        push(ranks[:3])
        for one in ranks[:2]:
            one.say(0.0)
        for one in ranks[:2]:
            with takes(at_most=5), pytest.raises(mlt.OperationTimeoutError) as caught:
                one.hear()
            assert caught.value.peer == 2
            assert_names(str(caught.value), "key 1", "no push of rank 2 within 200 ms", "service rank 3")


def test_log__names_a_worker_that_the_sums_are_made_without(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLT_MAX_DEAD_WORKERS", "1")
    with caplog.at_level(logging.WARNING, "mlt"), local_job(3, services=1) as contexts:
        contexts[2].close()
        tensors = [np.full(10, rank, np.float32) for rank in range(2)]
        for _ in range(3):
            handles = [mlt.PushPull(contexts[rank]).push_pull(tensors[rank], key=1) for rank in range(2)]
            for handle in handles:
                handle.wait(10)
            # The message may come after the result.
            until(lambda: all(context.counters()["push_pull_workers_gone"] == 1 for context in contexts[:2]))
        assert (tensors[0] == 0.5).all()
    texts = [record.getMessage() for record in caplog.records if "without it" in record.getMessage()]
    assert len(texts) == 2  # of the two workers; the service's are logged by run()
    for text in texts:
        assert_names(text, "rank 2", "1 of at most 1")


@pytest.mark.parametrize(("max_dead", "status"), [("1", 0), ("0", 1)])
def test_serve__succeeds_unless_more_workers_failed_than_may(max_dead: str, status: int) -> None:
    port = free_port()
    service = subprocess.Popen(
        [*COMMAND, "serve", "--max-dead-workers", max_dead],
        env=environment(port), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        with process_job(loner, 2, port) as ranks:
            assert [one.hear() for one in ranks] == ["ready"] * 2
            ranks[1].process.kill()
            ranks[0].say("go")
            assert ranks[0].hear() == ("averaged" if status == 0 else "failed")
            ranks[0].process.join(10)  # it leaves the job
        _, errors = service.communicate(timeout=10)
        assert service.returncode == status, errors
        assert "rank 1" in errors
    finally:
        service.kill()
        service.communicate()


def loner(pipe: Connection, rank: int, _: int, port: int) -> None:
    """One of two workers of a service that was started by hand."""
    with mlt.Context(
        rank, 2, 1, master_addr="127.0.0.1", rendezvous_port=port, connect_timeout=START_SECONDS
    ) as context:
        push_pull = mlt.PushPull(context)
        push_pull.push_pull(np.ones(10, np.float32), key=1).wait(20)
        pipe.send("ready")
        pipe.recv()
        try:
            push_pull.push_pull(np.ones(10, np.float32), key=1).wait(20)
            pipe.send("averaged")
        except mlt.PeerFailedError:
            pipe.send("failed")


DYING = """
import os, signal, numpy as np, mlt
with mlt.Context() as context:
    push_pull, tensor = mlt.PushPull(context), np.zeros(1000, np.float32)
    for step in range(20):
        if context.rank in {dying} and step == 7:
            os.kill(os.getpid(), signal.SIGKILL)
        tensor[:] = context.rank
        push_pull.push_pull(tensor, key=1).wait(20)
    print("end", tensor[0], flush=True)
"""


def test_launch__continues_after_as_many_dead_workers_as_allowed() -> None:
    one = ["-n", "3", "-s", "1", "--max-dead-workers", "1", "--", sys.executable, "-c"]
    done = launch(*one, DYING.format(dying={2}))
    assert done.returncode == 0, done.stderr
    assert sorted(re.findall(r"^.* end .*$", done.stdout, re.MULTILINE)) == ["[0] end 0.5", "[1] end 0.5"]
    assert_names(done.stderr, "rank 2", "SIGKILL", "continue without it")
    done = launch(*one, DYING.format(dying={1, 2}))
    assert done.returncode == 128 + signal.SIGKILL, done.stderr
    assert "] end" not in done.stdout
    assert_names(done.stderr + done.stdout, "rank 1", "rank 2", "PeerFailedError")


KILLING = f"""{KILL_SERVICE}
import numpy as np, mlt
with mlt.Context() as context:
    push_pull, tensor = mlt.PushPull(context), np.zeros(1_000_000, np.float32)
    for step in range(20):
        if context.rank == 0 and step == 7:
            kill_service()
        tensor[:] = context.rank + step
        push_pull.push_pull(tensor, key=1).wait(20)
        assert (tensor == step + 0.5).all(), step
    print("end", flush=True)
"""


def test_launch__continues_after_as_many_dead_services_as_allowed() -> None:
    words = ["-n", "2", "-s", "2", "--max-dead-services", "1", "--", sys.executable, "-c", KILLING]
    done = launch(*words)
    assert done.returncode == 0, done.stderr
    assert sorted(re.findall(r"^.* end$", done.stdout, re.MULTILINE)) == ["[0] end", "[1] end"]
    assert_names(done.stderr, "service", "SIGKILL", "continue without it")
    done = launch(*[word for word in words if word not in ("--max-dead-services", "1")])
    assert done.returncode != 0
    assert "] end" not in done.stdout
    assert_names(done.stderr + done.stdout, "service", "SIGKILL", "PeerFailedError")


@pytest.mark.parametrize("option", ["--max-dead-workers", "--max-dead-services"])
def test_launch__rejects_the_bound_without_services(option: str) -> None:
    done = launch("-n", "2", option, "1", "--", "true")
    assert done.returncode == 2
    assert_names(done.stderr, "--services", option)
