"""A rank that dies, hangs or leaves: operations with it fail in time and name it, all others continue."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from multiprocessing.connection import Connection

import numpy as np
import pytest
from checks import assert_names, strike, until
from rank_jobs import ends_of
from transport_jobs import START_SECONDS, RankProcess, open_rank, paused, process_job, takes

import mlt
from mlt._shared.ports import free_port

# A killed process closes its connections at once; a stopped one is noticed by its silence.
PEER_TIMEOUT = 1.0
KILLED_SECONDS = 2.0
SILENT_SECONDS = PEER_TIMEOUT + 1.5
# Slow enough that a transfer is under way for many seconds.
LINE_RATE_GBPS = 0.05
MANY = 16_000_000


def worker(pipe: Connection, rank: int, port: int) -> None:
    """Ranks 0 and 1 each send to and receive from rank 2, and to and from each other, until rank 2 has failed."""
    times = {"peer_timeout": PEER_TIMEOUT, "suspended_timeout": PEER_TIMEOUT}
    with open_rank(rank, port, workers=3, line_rate_gbps=LINE_RATE_GBPS, **times) as context:
        if rank == 2:
            for peer in (0, 1):
                context.post_send(np.ones(MANY, np.float32), to=peer, tag=7)
                context.post_recv(np.ones(MANY, np.float32), from_=peer, tag=7)
            pipe.send("ready")
            time.sleep(60)  # killed before that
            return
        landing = bytearray(4 * MANY)
        receive = context.post_recv(landing, 0.5, from_=2, tag=7, dtype="float32")
        send = context.post_send(np.ones(MANY, np.float32), to=2, tag=7)
        until(lambda: context.counters()["data_packets_received"])
        pipe.send("ready")
        pipe.recv()
        failures = []
        for operation in (receive, send):
            try:
                operation.wait(20)
            except mlt.MltError as error:
                failures.append((error, time.monotonic()))
        landing.extend(b"ours again")
        try:
            context.post_send(np.ones(4), to=2)
        except mlt.MltError as error:
            failures.append((error, time.monotonic()))
        pipe.send(failures)
        other, into = 1 - rank, np.zeros(10_000, np.float32)
        exchange = [context.post_recv(into, from_=other, tag=8), context.post_send(np.ones_like(into), to=other, tag=8)]
        for operation in exchange:
            operation.wait(20)
        pipe.send((bool(into.all()), context.is_peer_up(2)))


@pytest.mark.parametrize(("blow", "seconds"), [(signal.SIGKILL, KILLED_SECONDS), (signal.SIGSTOP, SILENT_SECONDS)])
def test_transfer__with_a_rank_that_dies_or_hangs_fails_in_time(blow: signal.Signals, seconds: float) -> None:
    with process_job(worker, 3) as ranks:
        assert [one.hear() for one in ranks] == ["ready"] * 3  # data arrives: the transfers take many seconds
        pid = ranks[2].process.pid
        assert pid is not None
        struck = time.monotonic()
        strike(pid, blow)
        for one in ranks[:2]:
            one.say("go")
        for one in ranks[:2]:
            failures = one.hear()
            assert len(failures) == 3
            for error, at in failures:
                assert isinstance(error, mlt.PeerFailedError)
                assert error.peer == 2
                assert str(error).startswith(f"rank {one.rank}: ")
                assert "rank 2" in str(error)
                assert at - struck < seconds
            assert "receive of tag 7" in str(failures[0][0])
            assert f"float32[{MANY}]" in str(failures[0][0])
        for one in ranks[:2]:
            assert one.hear() == (True, False)


def member(pipe: Connection, rank: int, port: int) -> None:
    """Two workers and a service; every worker's push-pull is in progress when a rank is killed."""
    with open_rank(rank, port, workers=2, services=1, peer_timeout=PEER_TIMEOUT) as context:
        if rank == 2:
            service = mlt.SummationService(context)
            pipe.send("ready")
            service.run()
            pipe.send("served")
            return
        push_pull = mlt.PushPull(context)
        tensor = np.ones(1_000_000, np.float32)
        push_pull.push_pull(tensor, key=1).wait(20)
        pipe.send("ready")
        if pipe.recv() == "wait":
            time.sleep(60)  # killed before that
        try:
            operation = push_pull.push_pull(tensor, key=1, name="weights")
            pipe.send("posted")
            operation.wait(20)
        except mlt.MltError as error:
            pipe.send((error, time.monotonic()))


def push_while_killing(ranks: list[RankProcess], killed: int) -> mlt.PeerFailedError:
    """The error of rank 0's push-pull, which names the killed rank in time."""
    ranks[0].say("push")
    assert ranks[0].hear() == "posted"
    struck = time.monotonic()
    ranks[killed].process.kill()
    error, at = ranks[0].hear()
    assert isinstance(error, mlt.PeerFailedError)
    assert error.peer == killed
    assert f"rank {killed}" in str(error)
    assert at - struck < KILLED_SECONDS
    return error


def test_push_pull__fails_in_time_when_the_service_is_killed() -> None:
    with process_job(member, 3) as ranks:
        assert [one.hear() for one in ranks] == ["ready"] * 3
        # Rank 0 pushes; rank 1 never does, so that the round stays open.
        assert "key 1 (weights)" in str(push_while_killing(ranks, 2))


def test_push_pull__ends_in_time_when_another_worker_is_killed() -> None:
    with process_job(member, 3) as ranks:
        assert [one.hear() for one in ranks] == ["ready"] * 3
        ranks[1].say("wait")
        push_while_killing(ranks, 1)
        with takes(at_most=5.0):
            assert ranks[2].hear() == "served"


def closer(pipe: Connection, rank: int, port: int) -> None:
    """Rank 1 ends without closing its context: the interpreter's exit says goodbye for it."""
    context = open_rank(rank, port, workers=2)
    pipe.send("ready")
    pipe.recv()
    if rank == 0:
        try:
            context.post_recv(np.zeros(4), from_=1).wait(20)
        except mlt.PeerFailedError as error:
            pipe.send(str(error))
        context.close()


def test_exit__without_close_still_says_goodbye() -> None:
    with process_job(closer, 2) as ranks:
        assert [one.hear() for one in ranks] == ["ready"] * 2
        for one in ranks:
            one.say("go")
        with takes(at_most=5.0):
            text = ranks[0].hear()
        assert_names(text, "rank 1", "left the job", "closed its context", "exit status 0")
        for one in ranks:
            one.process.join(10)
            assert one.process.exitcode == 0


def quitter(pipe: Connection, rank: int, port: int) -> None:
    """Rank 1 ends with status 0, but nothing says goodbye for it."""
    context = open_rank(rank, port, workers=2)
    pipe.send("ready")
    pipe.recv()
    if rank == 1:
        os._exit(0)
    try:
        context.post_recv(np.zeros(4), from_=1).wait(20)
    except mlt.PeerFailedError as error:
        pipe.send(str(error))
    context.close()


def test_exit__that_skips_the_goodbye_is_not_called_a_kill() -> None:
    with process_job(quitter, 2) as ranks:
        assert [one.hear() for one in ranks] == ["ready"] * 2
        for one in ranks:
            one.say("go")
        assert_names(
            ranks[0].hear(), "rank 1", "ended without closing its context, or was killed", "look at its output"
        )
        ranks[1].process.join(10)
        assert ranks[1].process.exitcode == 0


def raiser(pipe: Connection, rank: int, port: int, kind: str) -> None:
    """Rank 1 leaves its ``with`` block by an exception; ranks 0 and 2 wait for it, a service watches."""
    context = open_rank(rank, port, workers=3, services=1)
    if rank == 3:
        with context:
            pipe.send("ready")  # connected to all: a rank that fails before would fail the connect
            mlt.SummationService(context).run()
            pipe.send([context.peer_failure(worker) for worker in range(3)])
        return
    try:
        with context:
            pipe.send("ready")
            pipe.recv()
            if rank == 1:
                raise ValueError("its text stays here")
            tensor = np.zeros(4, np.float32)
            operation = context.post_recv(tensor, from_=1) if kind == "recv" else context.post_all_reduce(tensor)
            pipe.send("posted")
            operation.wait(20)
    except ValueError:
        pass
    except mlt.PeerFailedError as error:
        pipe.send((str(error), error.peer))


@pytest.mark.parametrize("kind", ["recv", "all_reduce"])
def test_exception__of_one_rank_is_known_as_a_failure_with_its_type_at_all_others(kind: str) -> None:
    with process_job(raiser, 4, kind) as ranks:
        assert [one.hear() for one in ranks] == ["ready"] * 4
        with takes(at_most=5.0):
            for one in (ranks[0], ranks[2]):
                one.say("go")
                assert one.hear() == "posted"
            ranks[1].say("go")
            for one in (ranks[0], ranks[2]):
                text, peer = one.hear()
                assert_names(text, f"rank {one.rank}", "rank 1", "ValueError", "failed")
                assert "its text stays here" not in text
                # In front of all else, and once.
                cause = r"rank 1 at [0-9.]+ failed \(ended by ValueError\)"
                assert re.search(f" failed: (all-reduce number 1 of its group: )?{cause}", text), text
                assert text.count("ValueError") == 1
                assert peer == 1
            first, second, third = ranks[3].hear()
        assert_names(second, "rank 1", "ValueError")
        # The two that failed because of rank 1 name it as well.
        for text in (first, third):
            assert_names(text, "PeerFailedError", "about rank 1")


EXITING = """
import os
import sys
import threading
import numpy as np
import mlt

context = mlt.Context(
    rank := int(sys.argv[1]), 2, 0, master_addr="127.0.0.1", rendezvous_port=int(sys.argv[2]), connect_timeout=60
)
context.barrier()
if rank == 0:
    try:
        context.post_recv(np.zeros(4), from_=1, timeout=60).wait()  # a rank that has left already: the post fails
    except mlt.PeerFailedError as error:
        print(error, flush=True)
    context.close()
else:
    pending = context.post_recv(np.zeros(4), from_=0, timeout=60)

    def calls():
        while True:
            context.counters()

    def fails():
        while True:
            try:
                context.engine.rate_bits_per_second(7)
            except mlt.UnknownPeerError:
                pass

    {end}
"""


@pytest.mark.parametrize(
    ("end", "status", "named"),
    [
        ("sys.exit(3)", 3, "failed (ended with exit status 3)"),
        ("raise SystemExit('its text stays here')", 1, "failed (ended with exit status 1)"),
        ("raise KeyError('its text stays here')", 1, "failed (ended by KeyError)"),
        ("sys.exit()", 0, "left the job: its process closed its context, or ended with exit status 0"),
        ("context.close(); sys.exit(3)", 3, "left the job: its process closed its context"),
        ("os._exit(3)", 3, "ended without closing its context, or was killed"),
        # The thread returns from the native library while the interpreter ends.
        ("threading.Thread(target=pending.wait, daemon=True).start(); sys.exit(4)", 4, "ended with exit status 4"),
        # So do threads that never stop calling it, or that close it. The process must not abort.
        ("threading.Thread(target=calls, daemon=True).start(); sys.exit(4)", 4, "ended with exit status 4"),
        ("threading.Thread(target=calls, daemon=True).start(); raise KeyError", 1, "failed (ended by KeyError)"),
        ("context.close(); threading.Thread(target=calls, daemon=True).start(); sys.exit(4)", 4, "left the job"),
        ("threading.Thread(target=context.close, daemon=True).start(); sys.exit(4)", 4, "rank 1"),
        # Also while they get errors: those are made without a line of Python, which could be interrupted.
        (
            "sys.setswitchinterval(1e-6)\n"
            "    for _ in range(4): threading.Thread(target=fails, daemon=True).start()\n"
            "    sys.exit(4)",
            4,
            "ended with exit status 4",
        ),
        # The system keeps the lowest 8 bits.
        ("sys.exit(256)", 0, "left the job"),
        ("sys.exit(-1)", 255, "ended with exit status 255"),
        # The child has the context too, and says nothing.
        ("os.fork() or sys.exit(5); sys.exit(6)", 6, "ended with exit status 6"),
        ("os.kill(os.getpid(), 2); threading.Event().wait()", -2, "failed (ended by KeyboardInterrupt)"),
    ],
)
def test_end__of_a_program_reaches_the_other_ranks_with_its_cause(end: str, status: int, named: str) -> None:
    port = str(free_port())
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", EXITING.format(end=end), str(rank), port],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]
    other, ended = ends_of(ranks, 120)
    assert ended[0] == status, ended
    assert named in other[1], (other, ended)
    assert "its text stays here" not in other[1]
    assert other[0] == 0, other


SUDDEN_END = """
import sys
import mlt
context = mlt.Context(0, 1, 1, master_addr="127.0.0.1", rendezvous_port=int(sys.argv[1]), connect_timeout=30)
{end}
"""


@pytest.mark.parametrize(
    ("end", "status", "named"),
    [
        ("raise KeyError('x')", 1, "KeyError"),
        ("with context: sys.exit(4)", 1, "sys.exit(4)"),
        ("sys.exit(4)", 1, "exit status 4"),
        ("context.close()", 0, ""),
        ("", 0, ""),
    ],
)
def test_serve__ends_non_zero_exactly_if_a_worker_ended_by_an_exception(end: str, status: int, named: str) -> None:
    port = str(free_port())
    where = ["--world-size=1", "--services=1", "--master-addr=127.0.0.1", f"--rendezvous-port={port}"]
    serve = subprocess.Popen([sys.executable, "-m", "mlt.cli.main", "serve", *where], stderr=subprocess.PIPE, text=True)
    try:
        subprocess.run(
            [sys.executable, "-c", SUDDEN_END.format(end=end), port], capture_output=True, timeout=60, check=False
        )
        output = serve.communicate(timeout=30)[1]
    finally:
        serve.kill()
    assert serve.returncode == status
    if named:
        assert_names(output, "rank 0", named)


def sleeper(pipe: Connection, rank: int, port: int) -> None:
    """Rank 1 receives from rank 0, and is stopped meanwhile."""
    with open_rank(rank, port, workers=2) as context:
        pipe.send("ready")
        pipe.recv()
        tensor = np.full(1_000_000, rank, np.float32)
        operation = context.post_send(tensor, to=1) if rank == 0 else context.post_recv(tensor, from_=0)
        operation.wait(START_SECONDS)
        pipe.send(float(tensor.sum()))


@pytest.mark.parametrize("seconds", [5, 8])
def test_transfer__survives_a_rank_that_is_stopped_for_longer_than_the_silence_limit(seconds: int) -> None:
    with process_job(sleeper, 2) as ranks:
        assert [one.hear() for one in ranks] == ["ready"] * 2
        with paused(ranks[1]):
            ranks[0].say("go")
            time.sleep(seconds)  # the default limit of silence is 3 s
        ranks[1].say("go")
        assert [one.hear() for one in ranks] == [0.0, 0.0]


def early_leaver(pipe: Connection, rank: int, port: int) -> None:
    """Ranks 1 and 2 leave as soon as they may; ranks 0 and 3 exchange a tensor."""
    with open_rank(rank, port, workers=4) as context:
        if rank in (0, 3):
            landing = np.zeros(1000, np.float32)
            receive = context.post_recv(landing, from_=3 - rank, tag=1)
            context.post_send(np.full(1000, rank, np.float32), to=3 - rank, tag=1).wait(START_SECONDS)
            receive.wait(START_SECONDS)
            assert (landing == 3 - rank).all()
    pipe.send("left")


def test_leaving__at_once_does_not_disturb_the_start_of_others() -> None:
    for _ in range(4):  # who is still waiting for whom is chance
        with process_job(early_leaver, 4) as ranks:
            assert [one.hear() for one in ranks] == ["left"] * 4


def forker(pipe: Connection, rank: int, port: int) -> None:
    """Forks with an open context; the child may not use it, and its exit disturbs nothing."""
    with mlt.Context(rank, 2, master_addr="127.0.0.1", rendezvous_port=port) as context:
        if rank == 0:
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    context.post_send(np.zeros(4), to=1)
                except mlt.ClosedError:
                    context.close()
                    del context
                    status = 0
                os._exit(status)
            pipe.send(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        tensor = np.full(10, rank, np.float32)
        receive = context.post_recv(into := np.zeros(10, np.float32), from_=1 - rank)
        context.post_send(tensor, to=1 - rank).wait(10)
        receive.wait(10)
        pipe.send(float(into[0]))


def test_fork__the_child_is_refused_and_the_parent_goes_on() -> None:
    with process_job(forker, 2) as ranks:
        assert ranks[0].hear() == 0
        assert ranks[0].hear() == 1.0
        assert ranks[1].hear() == 0.0
