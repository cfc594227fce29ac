"""``connects_on_use=`` and MLT_CONNECTS_ON_USE: what is accepted, the connections of each call, ranks that never
answer."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from checks import strike
from transport_jobs import free_port, local_job

import mlt


@pytest.mark.parametrize("text", ["yes", "2", "-1"])
def test_context__rejects_a_bad_variable(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLT_CONNECTS_ON_USE", text)
    with pytest.raises(mlt.ConfigError, match=f"MLT_CONNECTS_ON_USE is '{text}'"):
        mlt.Context(0, 1)


@pytest.mark.parametrize("value", [1, "1", 0.5])
def test_context__rejects_what_is_not_a_bool(value: Any) -> None:
    with pytest.raises((mlt.ConfigError, TypeError), match="connects_on_use is"):
        mlt.Context(0, 1, connects_on_use=value)


def peers_up(ranks: list[mlt.Context]) -> list[list[int]]:
    """The connections of each rank."""
    return [[peer for peer in range(one.size) if peer != one.rank and one.is_peer_up(peer)] for one in ranks]


def test_ring__connects_each_rank_with_its_neighbours_only() -> None:
    def call(context: mlt.Context) -> None:
        tensor = np.full(1_000, context.rank, np.float32)
        context.all_reduce(tensor, op=mlt.Reduction.SUM, algorithm="ring")
        assert (tensor == 10).all()

    with local_job(5, connects_on_use=True) as ranks, ThreadPoolExecutor(5) as threads:
        assert peers_up(ranks) == [[]] * 5
        list(threads.map(call, ranks))
        assert peers_up(ranks) == [[1, 4], [0, 2], [1, 3], [2, 4], [0, 3]]


def test_post_send__with_a_priority_function_waits_for_the_connection_that_gives_the_grid() -> None:
    sent, received = np.arange(10_000, dtype=np.float32), np.empty(10_000, np.float32)
    with local_job(2, connects_on_use=True) as (zero, one):
        send = zero.post_send(sent, lambda tensor, grid: np.ones(grid.segment_count, np.uint8) * 8, to=1)
        one.wait(one.post_recv(received, from_=0))
        zero.wait(send)
    assert (received == sent).all()


def test_push_pull__connects_workers_with_services_only() -> None:
    def call(context: mlt.Context) -> None:
        tensor = np.full(1_000, context.rank, np.float32)
        mlt.PushPull(context).push_pull(tensor, key=1).wait()
        assert (tensor == 1).all()

    with local_job(3, services=1, connects_on_use=True) as ranks, ThreadPoolExecutor(3) as threads:
        list(threads.map(call, ranks[:3]))
        assert peers_up(ranks[:3]) == [[3], [3], [3]]


def test_start__of_ranks_that_disagree_is_refused() -> None:
    port = free_port()

    def start(rank: int) -> str:
        try:
            with mlt.Context(
                rank, 2, master_addr="127.0.0.1", rendezvous_port=port, connects_on_use=rank == 1, connect_timeout=20.0
            ):
                return ""
        except mlt.MltError as error:
            return str(error)

    with ThreadPoolExecutor(2) as threads:
        texts = list(threads.map(start, range(2)))
    assert all("rank 1 connects on first use, rank 0 at the start" in text for text in texts), texts


PEER = """
import sys, time, mlt
with mlt.Context({rank}, 3, master_addr="127.0.0.1", rendezvous_port={port}, connects_on_use=True, connect_timeout=20):
    print("up", flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize(("kind", "limit"), [(signal.SIGKILL, 4.0), (signal.SIGSTOP, 9.0)])
@pytest.mark.parametrize("own", [0, 2])
def test_post_send__to_a_rank_that_died_or_stopped_before_names_it(
    kind: signal.Signals, limit: float, own: int
) -> None:
    port = free_port()
    others = [
        subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(PEER.format(rank=rank, port=port))], stdout=subprocess.PIPE
        )
        for rank in range(3)
        if rank != own
    ]
    victim, rank = others[0], next(rank for rank in range(3) if rank != own)
    try:
        with mlt.Context(
            own,
            3,
            master_addr="127.0.0.1",
            rendezvous_port=port,
            connects_on_use=True,
            connect_timeout=6.0 if kind == signal.SIGSTOP else 30.0,
            peer_timeout=1.0,
        ) as context:
            for one in others:
                assert one.stdout is not None
                assert one.stdout.readline() == b"up\n"
            strike(victim.pid, kind)
            began = time.monotonic()
            with pytest.raises(mlt.PeerFailedError, match=f"could not reach rank {rank} at") as caught:
                context.post_send(np.zeros(1), to=rank)
            assert time.monotonic() - began < limit
            assert caught.value.peer == rank
            assert context.peer_failure(rank)
    finally:
        for one in others:
            one.kill()
            one.wait()
            assert one.stdout is not None
            one.stdout.close()
