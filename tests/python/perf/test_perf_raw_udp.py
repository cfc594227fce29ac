"""The bare loop's own rounds: what counts into their time."""

from __future__ import annotations

import socket
import threading
import time
from pathlib import Path

import pytest

from mlt import _core
from mlt._shared.ports import free_port
from mlt.errors import ConfigError
from mlt.perf import _bare_udp
from mlt.perf.options import Options
from mlt.perf.patterns import Buffers, Case
from mlt.perf.transports import Address, Place
from mlt.perf.transports.raw_udp import TRANSPORT as RAW_UDP


def place(rank: int, mtu: int = 65_536) -> Place:
    return Place(rank, 2, "127.0.0.1", "lo", mtu, "job")


def test_round__begins_with_the_first_question_though_it_is_lost() -> None:
    table = [Address("127.0.0.1", free_port()) for _ in range(2)]
    receiver = RAW_UDP(place(0), Options())
    receiver.open(table)
    case = Case(pattern="p2p", bytes=8_000, ranks=2)

    def send() -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.bind((table[1].host, table[1].port))
            sock.connect((table[0].host, table[0].port))
            _bare_udp.prepare(sock.fileno(), 5_000_000_000)
            for _ in range(3):
                sock.recv(4)
            _bare_udp.send(sock.fileno(), Buffers(case, 1).outgoing, receiver._payload)

    sender = threading.Thread(target=send)
    sender.start()
    try:
        outcome = receiver.incast(Buffers(case, 0))
    finally:
        sender.join()
        receiver.close()
    assert outcome.arrived_bytes == 8_000
    assert outcome.seconds > 0.1  # two silences of 50 ms


def test_all_reduce__sums_on_both_sides_round_after_round() -> None:
    table = [Address("127.0.0.1", free_port()) for _ in range(2)]
    # An odd number of elements, more than one run, a last datagram that is not full; and one that leaves a half empty.
    for elements in (300_001, 1):
        case = Case(pattern="allreduce", bytes=4 * elements, ranks=2)
        failures: list[str] = []
        both_open = threading.Barrier(2)

        def rank(
            number: int, case: Case = case, failures: list[str] = failures, opened: threading.Barrier = both_open
        ) -> None:
            peer, buffers = RAW_UDP(place(number), Options(timeout=20)), Buffers(case, number)
            peer.open(table)
            opened.wait()
            try:
                for _ in range(3):
                    buffers.before_round(0)
                    outcome = peer.allreduce(buffers)
                    if outcome.arrived_bytes != case.bytes or buffers.missing():
                        failures.append(f"rank {number}: {outcome.arrived_bytes} bytes, {buffers.missing()} missing")
            finally:
                peer.close()

        other = threading.Thread(target=rank, args=(1,))
        other.start()
        rank(0)
        other.join()
        assert not failures


def test_payload__as_of_mlt_and_as_requested() -> None:
    for mtu, asked, payload in ((9_000, None, 8_928), (1_500, None, 1_432), (9_000, 4_096, 4_096)):
        table = [Address("127.0.0.1", free_port()) for _ in range(2)]
        peer = RAW_UDP(place(0, mtu), Options(segment_bytes=asked))
        peer.open(table)
        assert peer._payload == payload
        peer.close()


def test_core__holds_no_benchmark() -> None:
    assert hasattr(_bare_udp, "send")
    assert not [name for name in dir(_core) if "bare" in name]
    assert b"bare UDP" in Path(str(_bare_udp.__file__)).read_bytes()
    assert b"bare UDP" not in Path(str(_core.__file__)).read_bytes()


def test_send__reports_a_wrong_payload_as_mlt_does() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock, pytest.raises(ConfigError, match="give 8 to 8960"):
        _bare_udp.send(sock.fileno(), bytearray(100), 7)


def test_all_reduce__a_peer_that_gave_a_round_up_costs_a_silence_not_the_time_limit() -> None:
    table = [Address("127.0.0.1", free_port()) for _ in range(2)]
    case = Case(pattern="allreduce", bytes=4_000, ranks=2)
    outcomes: list[list[int | None]] = [[], []]
    both_open, ahead = threading.Barrier(2), threading.Event()

    def rank(number: int) -> None:
        peer, buffers = RAW_UDP(place(number), Options(timeout=20)), Buffers(case, number)
        peer.open(table)
        both_open.wait()
        try:
            outcomes[number].append(peer.allreduce(buffers).arrived_bytes)
            if number == 0:
                # As if round 2's datagrams had been lost, and this rank were in round 3 before the other begins 2.
                peer._round += 1
                ahead.set()
            else:
                assert ahead.wait(20)
            while peer._round < 12:
                outcomes[number].append(peer.allreduce(buffers).arrived_bytes)
        finally:
            peer.close()

    other = threading.Thread(target=rank, args=(1,))
    began = time.monotonic()
    other.start()
    rank(0)
    other.join()
    assert time.monotonic() - began < 5
    # In step again; a busy machine may break a round of its own.
    last = [outcome[:-7:-1] for outcome in outcomes]
    assert (case.bytes, case.bytes) in zip(*last, strict=True)
