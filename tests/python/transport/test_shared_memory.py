"""Ranks of one host share memory by themselves, do without where they are told to, and leave nothing of it behind."""

from __future__ import annotations

import hashlib
import os
import signal
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checks import in_threads
from transport_jobs import START_SECONDS, exchange, floats, local_job, paused, process_job

import mlt
from mlt._shared.ports import free_port

LONG_SEGMENT = 26_880  # the largest multiple of 8,960 bytes, those of loopback, below 32,704


def sockets(job: str) -> int:
    """Unix sockets at which memory is offered to ranks of the job."""
    number = int.from_bytes(hashlib.blake2b(job.encode(), digest_size=8).digest(), "little")
    return Path("/proc/net/unix").read_text().count(f"@mlt-{number:016x}-")


def open_ranks(each: list[dict[str, Any]], services: int = 0) -> list[mlt.Context]:
    """A context per rank, with options of its own; services run."""
    port, contexts = free_port(), [None] * len(each)

    def open_one(rank: int) -> None:
        workers = len(each) - services
        contexts[rank] = context = mlt.Context(
            rank,
            workers,
            services,
            master_addr="127.0.0.1",
            rendezvous_port=port,
            connect_timeout=START_SECONDS,
            operation_timeout=30.0,
            **each[rank],
        )
        if rank >= workers:
            mlt.SummationService(context)

    in_threads(open_one, [(rank,) for rank in range(len(each))])
    opened = [context for context in contexts if context is not None]
    assert len(opened) == len(each)
    return opened


def test_context__ranks_of_a_host_share_memory_unasked() -> None:
    with local_job(2) as contexts:
        tensor, into = floats(8), np.zeros(8 * 2**18, np.float32)
        exchange(contexts[0], contexts[1], tensor, into, tag=1)
        np.testing.assert_array_equal(into, tensor)
        counters = contexts[0].counters()
        assert counters["shm_peers"] == 1
        assert counters["shm_bytes_sent"] > tensor.nbytes
        assert counters["udp_runs_sent"] == 0
        assert counters["data_packets_sent"] < tensor.nbytes / LONG_SEGMENT + 10
        assert [path.local for path in contexts[0].paths(1)] == ["shared memory"]


@pytest.mark.parametrize(
    "options",
    [
        {"datapath": "udp"},
        {"segment_bytes": 1_024},
        {"line_rate_gbps": 10.0},
        {"paths": 2},
        {"faults": mlt.Faults(seed=3, duplicate=0.01)},
        {"busy_poll_us": 1},
    ],
    ids=lambda options: next(iter(options)),
)
def test_context__what_speaks_of_the_network_takes_the_network(options: dict[str, Any]) -> None:
    with local_job(2, **options) as contexts:
        into = np.zeros(100_000, np.float32)
        exchange(contexts[0], contexts[1], np.ones(100_000, np.float32), into)
        assert into.all()
        counters = contexts[0].counters()
        assert counters.get("shm_peers", 0) == 0
        assert counters["data_packets_sent"] > 40  # 15 through shared memory


def test_context__environment_turns_it_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLT_DATAPATH", "udp")
    with local_job(2) as contexts:
        assert "shm_peers" not in contexts[0].counters()


def test_context__one_rank_without_it_is_reached_over_the_network_by_all() -> None:
    contexts = open_ranks([{}, {}, {"datapath": "udp"}])
    try:
        assert [context.counters().get("shm_peers", 0) for context in contexts] == [1, 1, 0]
        tensor = floats(1)
        for sender in contexts:
            for receiver in contexts:
                if sender is receiver:
                    continue
                into = np.zeros_like(tensor)
                exchange(sender, receiver, tensor, into, tag=7)
                np.testing.assert_array_equal(into, tensor)
        assert all(context.counters()["segments_repaired"] == 0 for context in contexts[:2])
    finally:
        for context in contexts:
            context.close()


def test_push_pull__workers_that_share_memory_with_the_service_and_others_sum_together() -> None:
    contexts = open_ranks([{}, {"datapath": "udp"}, {}], services=1)
    try:
        tensors = [floats(5) + rank for rank in range(2)]
        workers = [mlt.PushPull(context) for context in contexts[:2]]
        for _ in range(2):
            rounds = [worker.push_pull(tensor.copy(), key=4) for worker, tensor in zip(workers, tensors, strict=True)]
            results = [one.wait(30) for one in rounds]
            assert len(results) == 2
        assert contexts[2].counters()["shm_peers"] == 1
        sums = [tensor.copy() for tensor in tensors]
        ends = [worker.push_pull(one, key=5) for worker, one in zip(workers, sums, strict=True)]
        for end in ends:
            end.wait(30)
        np.testing.assert_array_equal(sums[0], sums[1])
        np.testing.assert_allclose(sums[0], (tensors[0] + tensors[1]) / 2, rtol=1e-6)
    finally:
        for context in contexts:
            context.close()


def killed(pipe: Connection, rank: int, port: int, job: str) -> None:
    """Rank 1 sends what rank 0 never takes, until it is killed."""
    context = mlt.Context(
        rank, 2, job=job, master_addr="127.0.0.1", rendezvous_port=port, peer_timeout=1.0, connect_timeout=START_SECONDS
    )
    with context:
        if rank == 1:
            for tag in range(200):
                context.post_send(np.ones(250_000, np.float32), to=0, tag=tag)
            pipe.send(context.counters()["shm_peers"])
            time.sleep(60)  # killed before that
            return
        into = np.zeros(250_000, np.float32)
        receive = context.post_recv(into, from_=1, tag=10_000)
        pipe.send(context.counters()["shm_peers"])
        try:
            receive.wait(20)
        except mlt.MltError as error:
            pipe.send((error, context.counters()["shm_peers"], mapped()))


def mapped() -> int:
    """Mappings of shared memory of this process."""
    return sum("/memfd:mlt" in line for line in Path("/proc/self/maps").read_text().splitlines())


def test_context__a_killed_rank_leaves_neither_memory_nor_name() -> None:
    job = f"killed-{os.getpid()}-{time.monotonic_ns()}"
    with process_job(killed, 2, job) as ranks:
        assert [one.hear() for one in ranks] == [1, 1]
        assert sockets(job) == 2
        pid = ranks[1].process.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        error, peers, mappings = ranks[0].hear()
        assert isinstance(error, mlt.PeerFailedError)
        assert (peers, mappings) == (0, 0)
    assert sockets(job) == 0


def test_context__close_gives_the_memory_back() -> None:
    job, kept = f"closed-{os.getpid()}-{time.monotonic_ns()}", mapped()
    with local_job(2, job=job) as contexts:
        assert mapped() > kept
        assert sockets(job) == 2
        exchange(contexts[0], contexts[1], np.ones(1_000, np.float32), np.zeros(1_000, np.float32))
        for context in contexts:
            context.close()
        assert mapped() == kept
        assert sockets(job) == 0  # though the contexts are there still


def test_transfer__a_peer_that_does_not_read_delays_no_other() -> None:
    with process_job(stopped, 3) as ranks:
        assert [one.hear() for one in ranks] == ["ready"] * 3
        with paused(ranks[2]):
            ranks[0].say("go")
            seconds, full, dropped = ranks[0].hear()
        # 20 exchanges with rank 1, while what is for rank 2 fills its ring and waits.
        assert seconds < 5
        assert full >= 1
        assert dropped == 0
        ranks[1].say("end")
        assert ranks[2].hear() is True
        ranks[2].say("end")


def stopped(pipe: Connection, rank: int, port: int) -> None:
    """Rank 0 sends 32 MB to rank 2, which is stopped meanwhile, and exchanges with rank 1."""
    context = mlt.Context(
        rank, 3, master_addr="127.0.0.1", rendezvous_port=port, peer_timeout=30.0, connect_timeout=START_SECONDS
    )
    with context:
        large = np.zeros(8_000_000, np.float32)
        receive = context.post_recv(large, from_=0, tag=1) if rank == 2 else None
        rounds = [context.post_recv(np.zeros(100_000, np.float32), from_=0, tag=2) for _ in range(20 * (rank == 1))]
        pipe.send("ready")
        if receive is not None:
            receive.wait(30)
            pipe.send(bool(large.all()))
            pipe.recv()
            return
        if rank == 1:
            for one in rounds:
                one.wait(30)
            pipe.recv()
            return
        pipe.recv()
        send = context.post_send(np.ones_like(large), to=2, tag=1)
        start = time.monotonic()
        for _ in range(20):
            context.post_send(np.ones(100_000, np.float32), to=1, tag=2).wait(20)
        seconds = time.monotonic() - start
        counters = context.counters()
        pipe.send((seconds, counters["shm_full"], counters["shm_answers_dropped"]))
        send.wait(30)
