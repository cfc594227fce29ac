"""Elastic jobs between real processes: workers and services join, leave and die between steps, the others go on in the
same process, with the same bits."""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import pytest
from checks import names, strike
from elastic_jobs import Running, coordinator
from transport_jobs import RankProcess, takes

import mlt
from mlt._shared.ports import free_port
from mlt.elastic import Membership

SIZE = 5_000
SECONDS = 30.0
PEER_SECONDS = 3.0  # a live process may get no core for a second
MORE_STEPS = 20


def worker(pipe: Connection, name: int, place: str) -> None:
    """A step for each "step", until "leave". Sends what happened."""
    weights, step = np.zeros(SIZE, np.float32), 0
    with Membership(place) as membership:
        while True:
            context = membership.next_epoch(
                operation_timeout=SECONDS, peer_timeout=PEER_SECONDS, suspended_timeout=PEER_SECONDS
            )
            assert context is not None
            weights, step = synchronized(context, weights, step)
            pipe.send(("epoch", membership.epoch, context.rank, context.world_size, context.services, os.getpid()))
            try:
                while True:
                    word = pipe.recv()
                    if word == "leave":
                        return
                    gradients = np.random.default_rng([step, context.rank]).random(SIZE, np.float32)
                    if context.services:
                        mlt.PushPull(context).push_pull(gradients, key=1).wait(SECONDS)
                    elif context.world_size > 1:
                        context.all_reduce(gradients)
                    weights += gradients
                    step += 1
                    ends = membership.agrees_on_change(context)
                    pipe.send(("step", step, hashlib.sha256(weights).hexdigest(), ends))
                    if ends:
                        break
            except (mlt.PeerFailedError, mlt.CancelledError) as error:
                pipe.send(("failed", str(error)))


def busy_worker(pipe: Connection, name: int, place: str) -> None:
    """Steps by itself, and sends "epoch" once it has made a step of one. It votes for the end ``MORE_STEPS`` after
    "end"; all end after the step in which all vote. Then sends the sizes of its epochs, and its weights."""
    weights, step, sizes = np.zeros(SIZE + 1, np.float32), 0, []
    ends_at: int | None = None
    is_over = False
    with Membership(place) as membership:
        while not is_over:
            context = membership.next_epoch(operation_timeout=SECONDS)
            assert context is not None
            try:
                weights, step = synchronized(context, weights, step)
                sizes.append(context.world_size)
                is_new = True
                while not is_over and not membership.agrees_on_change(context):
                    if ends_at is None and pipe.poll():
                        assert pipe.recv() == "end"
                        ends_at = step + MORE_STEPS
                    gradients = np.random.default_rng([step, context.rank]).random(SIZE + 1, np.float32)
                    gradients[-1] = ends_at is not None and step >= ends_at
                    if context.world_size > 1:
                        context.all_reduce(gradients, op=mlt.Reduction.SUM)
                    is_over = gradients[-1] == context.world_size
                    weights += gradients
                    step += 1
                    if is_new:
                        pipe.send(("epoch", context.world_size))
                        is_new = False
                    time.sleep(0.01)
            except (mlt.PeerFailedError, mlt.CancelledError):
                pass
    pipe.send(("done", sizes, hashlib.sha256(weights).hexdigest()))


def ended(workers: list[RankProcess]) -> list[tuple[list[int], str]]:
    """The sizes and weights of busy workers, which end now: no further member is awaited."""
    for one in workers:
        one.say("end")
    found = []
    for one in workers:
        message = one.hear(SECONDS)
        while message[0] == "epoch":
            message = one.hear(SECONDS)
        assert message[0] == "done"
        found.append(message[1:])
    return found


def synchronized(context: mlt.Context, weights: np.ndarray, step: int) -> tuple[np.ndarray, int]:
    """The state of the worker that has made most steps."""
    if context.world_size == 1:
        return weights, step
    steps = np.empty(context.world_size, np.int64)
    context.all_gather(steps, np.array([step]))
    root = int(steps.argmax())
    context.broadcast(weights, root=root)
    return weights, int(steps[root])


class Job:
    """A coordinator and workers, each a process."""

    def __init__(self, place: str, running: Running | None = None) -> None:
        self.place = place
        self.running = running
        self.workers: list[RankProcess] = []

    def wait_for(self, seconds: float) -> None:
        assert self.running is not None
        self.running.wait_for(seconds)

    def add(self, count: int = 1, target: Callable[..., None] = worker) -> list[RankProcess]:
        added = [RankProcess(target, len(self.workers) + one, (self.place,)) for one in range(count)]
        self.workers += added
        return added

    def end(self) -> None:
        for one in self.workers:
            one.end()


@contextlib.contextmanager
def job(workers: int, *, target: Callable[..., None] = worker, **bounds: Any) -> Iterator[Job]:
    with coordinator(**{"first_workers": workers, "wait_seconds": 2 * SECONDS, **bounds}) as running:
        started = Job(str(running.place), running)
        try:
            started.add(workers, target)
            yield started
        finally:
            started.end()


def heard(one: RankProcess, kind: str) -> Any:
    message = one.hear(SECONDS)
    assert message[0] == kind, message
    return message[1:]


def epochs(*workers: RankProcess) -> list[tuple[int, ...]]:
    """(Rank, workers, services) of each, of one epoch."""
    found = [heard(one, "epoch") for one in workers]
    assert len({number for number, *_ in found}) == 1
    assert [process for *_, process in found] == [one.process.pid for one in workers]  # none was started again
    return [tuple(place[1:-1]) for place in found]


def step(*workers: RankProcess) -> int:
    """A step of all, after which they have the same bits."""
    for one in workers:
        one.say("step")
    done = [heard(one, "step") for one in workers]
    assert len(set(done)) == 1
    return int(done[0][0])


def step_until_change(*workers: RankProcess) -> None:
    """Steps of all, until they agree that the epoch ends."""
    is_due = False
    while not is_due:
        for one in workers:
            one.say("step")
        done = [heard(one, "step") for one in workers]
        assert len(set(done)) == 1
        is_due = done[0][2]
        time.sleep(0.01)


def in_rank_order(workers: list[RankProcess]) -> list[RankProcess]:
    """By the first epoch, which comes in any order."""
    places = {one.rank: epochs(one)[0] for one in workers}
    return sorted(workers, key=lambda one: places[one.rank][0])


def test_worker__joins_with_the_others_state_and_they_keep_their_ranks() -> None:
    with job(2) as own:
        first, second = in_rank_order(own.workers)
        assert step(first, second) == 1
        (third,) = own.add()
        step_until_change(first, second)
        assert epochs(first, second, third) == [(0, 3, 0), (1, 3, 0), (2, 3, 0)]
        assert step(first, second, third) > 2


def test_workers__that_join_at_once_or_during_a_change_end_with_the_same_bits() -> None:
    with job(1, target=busy_worker) as own:
        own.add(2, busy_worker)
        time.sleep(0.3)  # the others are in the middle of their start, or have ended it
        own.add(1, busy_worker)
        for one in own.workers:
            heard(one, "epoch")
        done = ended(own.workers)
        assert len({digest for _, digest in done}) == 1
        assert {sizes[-1] for sizes, _ in done} == {4}
        assert all(sizes == sorted(sizes) for sizes, _ in done)


@pytest.mark.parametrize("seed", range(3))
def test_workers__that_die_at_any_moment_leave_the_others_with_the_same_bits(seed: int) -> None:
    draw = random.Random(seed)
    with job(4, target=busy_worker) as own:
        for one in own.workers:
            heard(one, "epoch")
        added = []
        for victim in draw.sample(own.workers, 2):
            time.sleep(0.5 + draw.random())  # any moment
            victim.process.kill()
            own.workers.remove(victim)
            added += own.add(1, busy_worker)
        for one in added:
            heard(one, "epoch")
        done = ended(own.workers)
        assert len({digest for _, digest in done}) == 1


def test_worker__that_leaves_by_itself_leaves_the_others_with_the_same_bits() -> None:
    with job(3) as own:
        first, second, third = in_rank_order(own.workers)
        step(first, second, third)
        first.say("leave")  # rank 0
        for one in (second, third):
            one.say("step")
        for one in (second, third):
            assert "rank 0" in heard(one, "failed")[0]
        assert epochs(second, third) == [(0, 2, 0), (1, 2, 0)]
        assert step(second, third) == 2


@pytest.mark.parametrize("killed", [0, 2])
def test_worker__that_is_killed_leaves_the_others_with_the_same_bits_in_the_same_processes(killed: int) -> None:
    with job(3) as own:
        workers = in_rank_order(own.workers)
        step(*workers)
        victim = workers.pop(killed)
        victim.process.kill()
        with takes(at_most=10.0):
            for one in workers:
                one.say("step")
            for one in workers:
                assert f"rank {killed}" in heard(one, "failed")[0]
            assert epochs(*workers) == [(0, 2, 0), (1, 2, 0)]
        for count in range(2, 5):
            assert step(*workers) == count


def test_worker__that_is_stopped_costs_its_place_only() -> None:
    with job(3) as own:
        first, second, third = in_rank_order(own.workers)
        own.wait_for(3.0)
        pid = third.process.pid
        assert pid is not None
        strike(pid)
        try:
            with takes(at_most=15.0):
                for one in (first, second):
                    one.say("step")
                for one in (first, second):
                    assert "rank 2" in heard(one, "failed")[0]
                assert epochs(first, second) == [(0, 2, 0), (1, 2, 0)]
            assert step(first, second) == 1
        finally:
            os.kill(pid, signal.SIGCONT)


def test_worker__that_dies_while_others_form_an_epoch_delays_them_for_moments_only() -> None:
    with job(3) as own:
        first, second, third = in_rank_order(own.workers)
        second.process.kill()
        third.process.kill()
        with takes(at_most=10.0):
            first.say("step")
            heard(first, "failed")
            place = heard(first, "epoch")
            while place[2] != 1:  # one of them was found dead after the other
                first.say("step")
                heard(first, "failed")
                place = heard(first, "epoch")
        assert step(first) == 1


def test_too_few__fail_by_name() -> None:
    with job(2, min_workers=2) as own:
        first, second = in_rank_order(own.workers)
        own.wait_for(2.0)
        second.process.kill()
        first.say("step")
        heard(first, "failed")
        with takes(at_least=1.0, at_most=6.0), pytest.raises(mlt.RendezvousError, match=names("1 worker", "2 workers")):
            first.hear(SECONDS)


def serve(place: str) -> subprocess.Popen[str]:
    own = {name: value for name, value in os.environ.items() if not name.startswith("MLT_")}
    return subprocess.Popen(
        [sys.executable, "-m", "mlt.cli.main", "serve"],
        env={**own, "MLT_ELASTIC": place, "MLT_PEER_TIMEOUT": f"{PEER_SECONDS}s", "COLUMNS": "200"},
        stderr=subprocess.PIPE,
        text=True,
    )


def test_services__join_die_and_end_with_the_workers() -> None:
    with job(2) as own, contextlib.ExitStack() as ends:
        workers = in_rank_order(own.workers)
        services = [serve(own.place)]
        ends.callback(lambda: [one.kill() for one in services])
        step_until_change(*workers)
        assert epochs(*workers) == [(0, 2, 1), (1, 2, 1)]
        step(*workers)
        services.append(serve(own.place))
        step_until_change(*workers)
        assert epochs(*workers) == [(0, 2, 2), (1, 2, 2)]
        step(*workers)
        services[0].kill()
        services[0].wait()
        with takes(at_most=10.0):
            is_over = False
            while not is_over:  # the service may be one without a part of the tensor
                for one in workers:
                    one.say("step")
                done = [one.hear(SECONDS) for one in workers]
                assert len({kind for kind, *_ in done}) == 1
                is_over = done[0][0] == "failed" or done[0][3]
            places = [heard(one, "epoch")[1:4] for one in workers]
        assert places == [(0, 2, 1), (1, 2, 1)]
        step(*workers)
        for one in workers:
            one.say("leave")
        _, errors = services[1].communicate(timeout=SECONDS)
        assert services[1].returncode == 0, errors
        assert "every worker has left" in errors


def test_coordinator__that_is_killed_stops_no_training_and_a_new_one_takes_over() -> None:
    command = [sys.executable, "-m", "mlt.cli.main", "elastic", "--min-workers", "2", "--quiet", "--listen"]

    def started(place: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen([*command, place])

    place = f"127.0.0.1:{free_port()}"
    running = started(place)
    own = Job(place)
    try:
        own.add(2)
        workers = in_rank_order(own.workers)
        step(*workers)
        running.kill()
        running.wait()
        for _ in range(20):
            step(*workers)
        running = started(place)
        (third,) = own.add()
        step_until_change(*workers)
        assert epochs(*workers, third) == [(0, 3, 0), (1, 3, 0), (2, 3, 0)]
        workers[0].process.kill()
        workers[0].process.join()
        for one in (workers[1], third):
            one.say("step")
        for one in (workers[1], third):
            heard(one, "failed")
        assert epochs(workers[1], third) == [(0, 2, 0), (1, 2, 0)]
    finally:
        own.end()
        running.terminate()
        assert running.wait(SECONDS) == 0


@pytest.mark.parametrize(
    ("call", "facts"),
    [
        (lambda: Membership(), ("MLT_ELASTIC is not set", "mlt launch --min-workers")),
        (lambda: Membership("nowhere:0"), ("coordinator", "nowhere:0")),
        (lambda: Membership("127.0.0.1:1", kind="driver"), ("'driver'", "'service'")),  # type: ignore[arg-type]
    ],
)
def test_membership__names_what_is_wrong(call: Any, facts: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLT_ELASTIC", raising=False)
    with pytest.raises(mlt.ConfigError, match=names(*facts)):
        call()


def test_next_epoch__rejects_what_the_membership_gives() -> None:
    with Membership("127.0.0.1:1") as membership, pytest.raises(TypeError, match="'rank'"):
        membership.next_epoch(rank=1)
