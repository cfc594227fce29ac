"""The table of PROTOCOL.md 4.11 against the engine: each check fails what passes those before it, and counts."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterator

import pytest
from engine_pair import FLOAT32, connected
from independent_endpoint import (
    ABORT,
    ACK,
    BITMAP,
    DATA,
    DATA_HEADER,
    MTU_PROBE,
    MTU_REPLY,
    PARITY,
    PROBE,
    RETIRE,
    STOP,
    VERSION,
    IndependentEndpoint,
    sealed,
)
from protocol_document import DOCUMENT, table

from mlt import _core

Pair = tuple[IndependentEndpoint, _core.Engine]
Build = Callable[[IndependentEndpoint], bytes]

BLOCK = struct.pack("<5I", 0, 0, 0, 0, 0)
TRANSFER = struct.pack("<QI", 7, 0)


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    with connected() as both:
        yield both


def data(peer: IndependentEndpoint, *, total: int = 8, offset: int = 0, payload: int = 8, path: int = 0) -> bytes:
    prefix = peer.prefix(DATA, 0, path << 4 | FLOAT32, 0, 1)
    header = prefix + struct.pack("<QIIII", 7, 0, total, offset, 0)
    return sealed(header + bytes(payload), DATA_HEADER)


def parity(
    peer: IndependentEndpoint, *, total: int = 8, segments: int = 1, index: int = 0, payload: int = 8, tag: int = 7
) -> bytes:
    prefix = peer.prefix(PARITY, 0, FLOAT32, 0, 1)
    header = prefix + struct.pack("<QIIHBBI", tag, 0, total, 0, segments, index, 0)
    return sealed(header + bytes(payload), DATA_HEADER)


def changed(message: bytes, at: int, value: int) -> bytes:
    return message[:at] + bytes([value]) + message[at + 1 :]


def flipped(message: bytes, at: int) -> bytes:
    """Certainly changed, whatever stood there: cookies are random."""
    return changed(message, at, message[at] ^ 0x5A)


def resealed(peer: IndependentEndpoint, message: bytes, covered: int | None = None) -> bytes:
    """The message with the check of its present bytes."""
    return sealed(message[:8] + peer.peer_cookie.to_bytes(8, "little") + message[16:], covered)


def ack(peer: IndependentEndpoint, *, more: bytes = b"", cut: int = 0) -> bytes:
    whole = peer.prefix(ACK) + BLOCK + TRANSFER + bytes(4) + more
    return sealed(whole[: len(whole) - cut])


def further(path: int, *, flags: int = 0, reserved: int = 0) -> bytes:
    return struct.pack("<BBH", path, flags, reserved) + BLOCK


def probe(
    peer: IndependentEndpoint, *, paths: int, names: int, total: int = 8, reserved: int = 0, suspended: int = 0
) -> bytes:
    fields = TRANSFER + struct.pack("<IIIBBH", total, 0, 1, paths, reserved, suspended)
    return sealed(peer.prefix(PROBE, element=FLOAT32) + fields + bytes(4 * names))


def bitmap(peer: IndependentEndpoint, *, first: int = 0, count: int = 0, bits: int = 0) -> bytes:
    return sealed(peer.prefix(BITMAP) + BLOCK + TRANSFER + struct.pack("<III", 0, first, count) + bytes(bits))


def stop(peer: IndependentEndpoint, *, status: int, missing: int = 0, reserved: int = 0) -> bytes:
    fields = struct.pack("<IBBxxII", 0, status, reserved, missing, 8)
    return sealed(peer.prefix(STOP, element=FLOAT32) + BLOCK + TRANSFER + fields)


def mtu_probe(peer: IndependentEndpoint, *, size: int, says: int, padding: int = 0) -> bytes:
    return sealed(
        (peer.prefix(MTU_PROBE) + struct.pack("<II", 5, says) + bytes(max(size - 25, 0)) + bytes([padding]))[:size]
    )


def mtu_reply(peer: IndependentEndpoint, *, says: int, more: bytes = b"") -> bytes:
    return sealed(peer.prefix(MTU_REPLY) + struct.pack("<II", 5, says) + more)


# Row of the table, what is wrong, the datagram. What is wrong with later checks too shows that the first one counts.
CASES: list[tuple[int, str, Build]] = [
    (1, "15 bytes of another version", lambda p: changed(data(p), 0, 0x51)[:15]),
    (2, "another version, an unknown type", lambda p: changed(data(p), 0, 0x5F)),
    (3, "an unknown type, unknown flags", lambda p: changed(changed(data(p), 0, (VERSION & 0xF) << 4 | 0xF), 1, 0xFF)),
    (4, "unknown flags, an unknown element", lambda p: changed(changed(data(p), 1, 0x40), 2, 0x0D)),
    (5, "an unknown element, a wrong cookie", lambda p: changed(data(p), 2, 0x0D)),
    (6, "half a header", lambda p: data(p)[:39]),
    (6, "half a header of parity", lambda p: parity(p)[:39]),
    (7, "a wrong cookie, a path too many", lambda p: flipped(data(p, path=1), 12)),
    (8, "a path too many, a payload too long", lambda p: data(p, path=1, payload=16)),
    (9, "an ABORT as a datagram", lambda p: sealed(p.prefix(ABORT) + TRANSFER)),
    (9, "a RETIRE as a datagram", lambda p: sealed(p.prefix(RETIRE) + bytes(8))),
    (10, "no payload", lambda p: data(p, payload=0)),
    (10, "a payload beyond the tensor", lambda p: data(p, offset=4)),
    (10, "an offset beyond the tensor", lambda p: data(p, offset=12, payload=1)),
    (10, "half an element", lambda p: data(p, total=10)),
    (10, "parity without payload", lambda p: parity(p, payload=0)),
    (10, "parity longer than the tensor", lambda p: parity(p, payload=12)),
    (10, "parity of half an element", lambda p: parity(p, total=10)),
    (10, "parity of a block without segments", lambda p: parity(p, segments=0)),
    (10, "parity of a block of 225 segments", lambda p: parity(p, segments=225)),
    (10, "parity beyond the 32nd of its block", lambda p: parity(p, index=32)),
    (11, "an ACK cut short", lambda p: ack(p, cut=1)),
    (13, "an ACK with a byte too many", lambda p: ack(p, more=b"\0")),
    (13, "an ACK with 16 further paths", lambda p: ack(p, more=b"".join(further(i) for i in range(16)))),
    (12, "a PROBE with a reserved byte, and of 17 paths", lambda p: probe(p, paths=17, names=17, reserved=1)),
    (
        12,
        "a PROBE that suspends a path that it does not name, and names too few",
        lambda p: probe(p, paths=2, names=1, suspended=4),
    ),
    (13, "a PROBE of 17 paths", lambda p: probe(p, paths=17, names=17)),
    (13, "a PROBE that names fewer paths than it says", lambda p: probe(p, paths=2, names=1)),
    (13, "a PROBE of half an element", lambda p: probe(p, paths=1, names=1, total=10)),
    (13, "a BITMAP between chunks", lambda p: bitmap(p, first=64, count=8, bits=1)),
    (13, "a BITMAP with too few bits", lambda p: bitmap(p, count=9, bits=1)),
    (13, "a BITMAP of too many segments", lambda p: bitmap(p, count=8_193, bits=1_025)),
    (13, "a STOP of an unknown status", lambda p: stop(p, status=7)),
    (14, "a STOP with a reserved byte, that misses too much", lambda p: stop(p, status=1, reserved=1, missing=9)),
    (11, "an MTU_PROBE cut short", lambda p: mtu_probe(p, size=23, says=23)),
    (13, "an MTU_PROBE of another length, padded with ones", lambda p: mtu_probe(p, size=99, says=100, padding=1)),
    (13, "an MTU_REPLY with a byte too many", lambda p: mtu_reply(p, says=24, more=b"\0")),
    (13, "an MTU_REPLY of fewer bytes than any probe has", lambda p: mtu_reply(p, says=23)),
    (14, "an MTU_PROBE whose padding is not zero", lambda p: mtu_probe(p, size=100, says=100, padding=1)),
    (15, "a STOP that misses more than there is", lambda p: stop(p, status=1, missing=9)),
    (15, "a STOP that is complete and misses something", lambda p: stop(p, status=0, missing=4)),
    (16, "an ACK with a reserved byte in a further path", lambda p: ack(p, more=further(0, reserved=1))),
    (16, "an ACK with a further path of unknown flags", lambda p: ack(p, more=further(0, flags=1))),
    (17, "an ACK that names a path twice", lambda p: ack(p, more=further(0))),
    (18, "an ACK of a path too many", lambda p: ack(p, more=further(1))),
]
ROWS = {int(row[0]): row[2].strip("`") for row in table(DOCUMENT, "### 4.11 What a receiver checks, in order")[1:]}


def drops(engine: _core.Engine) -> dict[str, int]:
    return {name: value for name, value in engine.counters().items() if name.startswith("drop_")}


def counted(engine: _core.Engine, before: dict[str, int]) -> dict[str, int]:
    deadline = time.monotonic() + 5
    while (now := drops(engine)) == before and time.monotonic() < deadline:
        time.sleep(0.002)
    return {name: now[name] - before[name] for name in now if now[name] != before[name]}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[1])
def test_check__agrees_with_the_table(pair: Pair, case: tuple[int, str, Build]) -> None:
    peer, engine = pair
    before = drops(engine)
    row, _, build = case
    peer.udp.sendto(build(peer), peer.peer_address)
    assert counted(engine, before) == {ROWS[row]: 1}


def test_check__data_over_tcp(pair: Pair) -> None:
    peer, engine = pair
    before = drops(engine)
    peer.write_frame(16, data(peer))
    assert counted(engine, before) == {ROWS[9]: 1}


def test_check__parity_over_tcp(pair: Pair) -> None:
    peer, engine = pair
    before = drops(engine)
    peer.write_frame(16, parity(peer))
    assert counted(engine, before) == {ROWS[9]: 1}


def test_check__mtu_probe_over_tcp(pair: Pair) -> None:
    peer, engine = pair
    before = drops(engine)
    peer.write_frame(16, mtu_probe(peer, size=100, says=100))
    assert counted(engine, before) == {ROWS[9]: 1}


def test_check__the_datagrams_are_right_but_for_that(pair: Pair) -> None:
    peer, engine = pair
    before = drops(engine)
    for message in (
        data(peer),
        parity(peer),
        ack(peer),
        probe(peer, paths=1, names=1),
        bitmap(peer),
        stop(peer, status=0),
        mtu_probe(peer, size=100, says=100),
        mtu_reply(peer, says=24),
    ):
        peer.udp.sendto(
            resealed(peer, message, DATA_HEADER if message[0] & 15 in (DATA, PARITY) else None), peer.peer_address
        )
    peer.pump(lambda: engine.counters()["stops_received"] >= 1)
    assert drops(engine) == before


def test_table__every_row_has_a_case() -> None:
    assert {row for row, _, _ in CASES} == set(ROWS)
