"""A rank that has the secret and says whatever is drawn, over both of its connections: the others' transfers and
collectives stay whole, and no rank ends."""

from __future__ import annotations

import hashlib
import hmac
import os
import random
import socket
import struct
import threading
from collections.abc import Iterator

import numpy as np
import pytest
from engine_pair import JOB, SECONDS, SECRET
from independent_endpoint import (
    ABORT,
    CONFIRM,
    CONNECTING,
    DATA,
    DATA_HEADER,
    FALLBACK,
    HELLO,
    LISTENING,
    OPEN,
    RETIRE,
    VERSION,
    sealed,
)

from mlt import _core

RANKS, HOSTILE, COLLECTIVE = 3, 2, 17
ODD = (0, 1, 2, 3, 255, 256, 1 << 15, (1 << 16) - 1, 1 << 16, 1 << 18, 1 << 20, (1 << 31) - 1, 1 << 31, (1 << 32) - 1)
ROUNDS, MESSAGES = 60, 40


def frame(kind: int, payload: bytes) -> bytes:
    return struct.pack("<IB3x", len(payload), kind) + payload


class Member:
    """Rank 2, connected to ``rank`` as section 3 says; then it draws what it says."""

    def __init__(self, rank: int, port: int, draw: random.Random) -> None:
        self._draw = draw
        self._udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._udp.bind(("127.0.0.1", 0))
        self._tcp = socket.create_connection(("127.0.0.1", port), timeout=10)
        self._heard = self._tcp.makefile("rb")
        root = hashlib.sha256(b"mlt secret" + struct.pack("<Q", len(SECRET)) + SECRET).digest()
        key = hmac.digest(root, b"mlt control" + struct.pack("<Q", JOB), "sha256")
        own = b"MLT1" + struct.pack("<HH", VERSION, 0) + os.urandom(32)
        self._tcp.sendall(frame(OPEN, own))
        answer = self._frame()
        other = answer[:40]
        assert hmac.digest(key, bytes([LISTENING, OPEN]) + own + other, "sha256") == answer[40:]
        hello = b"MLT1" + struct.pack("<HHHHHH", VERSION, HOSTILE, rank, RANKS, 1, 9)
        hello += struct.pack("<QQQIIII", JOB, 77, 0xABCDEF << 16 | rank, 1_432, 1 << 20, 500, 500)
        hello += bytes(16) + struct.pack("<HH", self._udp.getsockname()[1], 0)
        self._tcp.sendall(
            frame(HELLO, hello + hmac.digest(key, bytes([CONNECTING, HELLO]) + own + other + hello, "sha256"))
        )
        theirs = self._frame()
        (self._cookie,) = struct.unpack_from("<Q", theirs, 32)
        self._to = ("127.0.0.1", struct.unpack_from("<H", theirs, 56 + 16)[0])
        self._tcp.sendall(frame(CONFIRM, b""))
        threading.Thread(target=self._drain, daemon=True).start()

    def _frame(self) -> bytes:
        (length,) = struct.unpack("<I4x", self._heard.read(8))
        return self._heard.read(length)

    def _drain(self) -> None:
        while self._heard.read1(65_536):  # type: ignore[attr-defined]
            pass

    def close(self) -> None:
        self._tcp.shutdown(socket.SHUT_RDWR)
        self._udp.close()

    def speak(self) -> None:
        match self._draw.randrange(4):
            case 0:
                self._tcp.sendall(frame(COLLECTIVE, self._collective()))
            case 1:
                self._tcp.sendall(frame(FALLBACK, self._message()))
            case 2:
                self._udp.sendto(self._message(), self._to)
            case _:
                self._tcp.sendall(frame(self._draw.randrange(18, 256), os.urandom(self._draw.randrange(99))))

    def _u32(self) -> int:
        return self._draw.choice(ODD) if self._draw.random() < 0.7 else self._draw.getrandbits(32)

    def _u64(self) -> int:
        """A key or a tag, often that of somebody's transfers (14.1.3, 22.1.3)."""
        group = 0xCBF29CE484222325
        for byte in (0, 0, 1, 0):  # 22.1.2, of ranks 0 and 1
            group = (group ^ byte) * 0x100000001B3 % 2**64
        group %= 1 << 40
        known = (0, 1, (1 << 40) - 1, 1 << 40, 1 << 63, (1 << 64) - 4, group, 3 << 62 | group << 16)
        return self._draw.choice(known) + self._draw.randrange(4)

    def _collective(self) -> bytes:
        kind, text = self._draw.randrange(8), self._draw.randbytes(self._draw.randrange(40))
        said = struct.pack("<I", self._u32() if self._draw.random() < 0.1 else len(text)) + text
        bound = self._draw.choice((0.0, 0.5, float("nan"), -1.0, 1.0))
        rest = {
            1: struct.pack("<IIdBIB", self._u32(), self._draw.choice((1_432, 0, 4)), bound, 1, self._u32(), 255)
            + struct.pack("<QI", self._u64(), self._draw.choice((1, 0, self._u32()))),
            2: bytes([self._draw.randrange(2)]),
            3: said,
            4: struct.pack("<I", self._u32()),
            6: struct.pack("<IBII", self._u32(), self._draw.randrange(9), self._draw.randrange(3), self._u32()) + said,
        }
        return struct.pack("<BQI", kind, self._u64(), self._u32()) + rest.get(kind, b"")

    def _message(self) -> bytes:
        """A datagram with a good cookie, hence believed to be ours."""
        draw, kind = self._draw, self._draw.randrange(DATA, RETIRE + 2)
        kind = min(kind, RETIRE)
        prefix = struct.pack("<BBBBIQ", VERSION % 16 << 4 | kind, draw.choice((0, 1, 2, 4, 5)), draw.choice((0, 7)),
                             draw.randrange(3), self._u32(), self._cookie)  # fmt: skip
        if kind == RETIRE:
            count = draw.choice((0, 1, 2, 128, 129))
            tags = b"".join(struct.pack("<Q", self._u64()) for _ in range(min(count, 128)))
            return sealed(prefix + struct.pack("<II", self._u32(), count) + tags)
        if kind == ABORT:
            return sealed(prefix + struct.pack("<QI", self._u64(), self._u32()))
        message = prefix + b"".join(struct.pack("<I", self._u32()) for _ in range(draw.randrange(6, 24)))
        return sealed(message, DATA_HEADER if kind == DATA else None)


@pytest.fixture
def engines() -> Iterator[list[_core.Engine]]:
    made = [
        _core.Engine(
            _core.Options(
                rank=rank, ranks=RANKS, job=JOB, line_rate_bits_per_second=1e9, operation_timeout_ns=20 * SECONDS,
                peer_timeout_ns=60 * SECONDS, spin_us=0, secret=SECRET,
            )
        )
        for rank in (0, 1)
    ]  # fmt: skip
    yield made
    for engine in made:
        engine.close()


@pytest.mark.parametrize("seed", range(3))
def test_hostile_member__spoils_nobody_elses_transfers(engines: list[_core.Engine], seed: int) -> None:
    first, second = engines
    ports = [engine.control_port for engine in engines]
    connecting = [
        threading.Thread(target=first.connect, args=([(1, "127.0.0.1", ports[1]), (2, "127.0.0.1", 9)], 10 * SECONDS)),
        threading.Thread(target=second.connect, args=([(0, "127.0.0.1", ports[0]), (2, "127.0.0.1", 9)], 10 * SECONDS)),
    ]
    for thread in connecting:
        thread.start()
    members = [Member(rank, port, random.Random(2 * seed + rank)) for rank, port in enumerate(ports)]
    for thread in connecting:
        thread.join()
    rows = np.full((3, 20_000), 7.0, np.float32)  # the middle one is lent to the hostile rank
    options = {"layer": 0, "layers": 1, "priorities": None, "by_magnitude": False, "timeout_ns": 0, "dtype": ""}
    receiving = {"keep_missing": False, "eager": False, "deadline_ns": 0, "timeout_ns": 0, "dtype": ""}
    for turn in range(ROUNDS):
        second.post_recv(rows[1], from_=HOSTILE, tag=turn % 4, loss_bound=0.5, **receiving)
        second.post_send(rows[0], to=HOSTILE, tag=turn % 4, **options)
        for member in members:
            for _ in range(MESSAGES):
                member.speak()
        sent, arrived = np.arange(20_000, dtype=np.float32) + turn, np.zeros(20_000, np.float32)
        summed = [np.full(30_000, 1.0 + engine, np.float32) for engine in range(2)]
        sums = [
            engine.post_all_reduce(
                one,
                ranks=[0, 1],
                reduction=_core.Reduction.SUM,
                algorithm=_core.Algorithm.AUTOMATIC,
                lossy_results=False,
                stream=0,
                loss_bound=0.0,
                layer=0,
                layers=1,
                timeout_ns=0,
                dtype="",
            )
            for engine, one in zip(engines, summed, strict=True)
        ]
        operations = (
            second.post_recv(arrived, from_=0, tag=turn % 4, loss_bound=0.1, **receiving),
            first.post_send(sent, to=1, tag=turn % 4, **options),
        )
        ends = [second.wait(operations[0], 10 * SECONDS), first.wait(operations[1], 10 * SECONDS)]
        assert [end and end.status for end in ends] == ["complete"] * 2
        assert np.array_equal(sent, arrived)
        ends = [engine.wait(one, 10 * SECONDS) for engine, one in zip(engines, sums, strict=True)]
        assert [end and end.status for end in ends] == ["complete"] * 2
        assert all((one == 3.0).all() for one in summed)
        assert (rows[[0, 2]] == 7.0).all()
    assert all(engine.is_peer_up(1 - rank) for rank, engine in enumerate(engines))
    assert second.counters()["retirements_received"] > 0
    for member in members:
        member.close()
