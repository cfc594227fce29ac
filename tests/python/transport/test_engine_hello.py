"""Ranks that do not belong together find out when they connect, and say why, whatever the rendezvous told them."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Iterator

import pytest
from checks import in_threads
from transport_jobs import takes

import mlt
from mlt import _core

MISMATCH_SECONDS = 2.0
CONNECT_SECONDS = 3.0
# src/io/control/control_frame.h: frame header (payload length, type, three zero bytes), then the prefix of an opening.
OPEN_FRAME, OPEN_BYTES, MAGIC = 1, 72, 0x31544C4D


@contextlib.contextmanager
def engine(rank: int, *, ranks: int = 2, job: int = 1) -> Iterator[_core.Engine]:
    options = _core.Options(rank=rank, ranks=ranks, job=job, spin_us=0)
    options.operation_timeout_ns, options.peer_timeout_ns = 10**10, 10**9
    opened = _core.Engine(options)
    try:
        yield opened
    finally:
        opened.close()


def connect(engine: _core.Engine, peer: int, port: int) -> Exception | None:
    try:
        engine.connect([(peer, "127.0.0.1", port)], round(CONNECT_SECONDS * 1e9))
    except mlt.MltError as error:
        return error
    return None


def connect_both(first: _core.Engine, second: _core.Engine) -> list[tuple[Exception | None, float]]:
    """The error of either side, and after how many seconds it came."""
    start = time.monotonic()
    outcomes: list[tuple[Exception | None, float]] = [(None, 0.0)] * 2

    def one(index: int, own: _core.Engine, peer: _core.Engine) -> None:
        outcomes[index] = connect(own, 1 - index, peer.control_port), time.monotonic() - start

    in_threads(one, [(0, first, second), (1, second, first)])
    return outcomes


def test_connect__the_right_ranks_come_up() -> None:
    with engine(0) as first, engine(1) as second, takes(at_most=MISMATCH_SECONDS):
        assert [error for error, _ in connect_both(first, second)] == [None, None]


@pytest.mark.parametrize(
    ("first_options", "second_options", "cause"),
    [
        ({"job": 1}, {"job": 2}, "job's secret"),
        ({"ranks": 2}, {"ranks": 3}, "rank 0 has 2, rank 1 has 3"),
    ],
)
def test_connect__another_job_or_size_is_rejected(
    first_options: dict[str, int], second_options: dict[str, int], cause: str
) -> None:
    both = takes(at_most=CONNECT_SECONDS + 1)
    with engine(0, **first_options) as first, engine(1, **second_options) as second, both:
        (listening, _), (connecting, seconds) = connect_both(first, second)
    # The rank that connects hears it at once. The one that listens waits on for the right one, then says whom it
    # turned away.
    assert seconds < MISMATCH_SECONDS
    assert isinstance(connecting, mlt.PeerMismatchError)
    assert str(connecting).startswith("rank 1: ")
    assert "rank 0" in str(connecting)
    assert cause in str(connecting)
    assert connecting.peer == 0
    assert isinstance(listening, mlt.RendezvousError)
    assert str(listening).startswith("rank 0: ")
    assert "rank 1" in str(listening)
    assert cause in str(listening)
    assert listening.peer == 1


@pytest.mark.parametrize("version", [0, 1, 0xFFFF])
def test_connect__another_protocol_version_is_rejected(version: int) -> None:
    server = socket.create_server(("127.0.0.1", 0))

    def answer() -> None:
        connection, _ = server.accept()
        with connection:
            prefix = struct.pack("<IB3xIHH", OPEN_BYTES, OPEN_FRAME, MAGIC, version, 0)
            connection.sendall(prefix + bytes(OPEN_BYTES - 8))
            # Until the refused side is done with it.
            while connection.recv(4_096):
                pass

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    with server, engine(1) as own:
        with takes(at_most=MISMATCH_SECONDS):
            error = connect(own, 0, server.getsockname()[1])
        assert isinstance(error, mlt.PeerMismatchError)
        assert str(error).startswith("rank 1: ")
        assert "rank 0" in str(error)
        assert "version" in str(error)
        assert str(version) in str(error)
