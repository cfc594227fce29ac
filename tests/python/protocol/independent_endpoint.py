"""A second implementation of the protocol, written from PROTOCOL.md and RECOVERY.md alone: small, slow, no line of mlt.

It is rank 0 of a job of two, in one thread, over real sockets. Absent on purpose: pacing, windows, several paths and
push-pull. Numbers in comments are clauses.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import select
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass, field

VERSION = 16
MASK = 2**64 - 1
OPEN, REFUSE, CONFIRM, HEARTBEAT, GOODBYE, HELLO, ASK, FALLBACK = 1, 2, 3, 4, 5, 6, 7, 16
CONNECTING, LISTENING = 1, 2
DATA, ACK, PROBE, BITMAP, STOP, ABORT, MTU_PROBE, MTU_REPLY, RETIRE, PARITY = 1, 2, 3, 4, 5, 6, 7, 8, 9, 10
RETIRE_LAST = 0x01
CRITICAL, HAS_CRITICAL, END_OF_ROUND, REPAIR, OVERTAKES, UNCONFIRMED = 1, 2, 4, 8, 16, 32
POSTED, ACK_ECHO, ACK_ONLY, PROBE_CRITICAL, TRAILING, NOT_POSTED, READY, ECHO = 1, 2, 1, 2, 4, 1, 2, 4
CHUNK = 8_192
DATA_HEADER = 40
RETRY_SECONDS = 0.05


def check(covered: bytes) -> int:
    """4.3.3, its lowest 16 bits cleared (4.3.1)."""
    data = covered + b"\0" * (-len(covered) % 8)
    c = 0x6D6C742D63686563
    for at in range(0, len(data), 8):
        if at != 8:
            c = (c ^ int.from_bytes(data[at : at + 8], "little")) * 0x9E3779B97F4A7C15 & MASK
            c ^= c >> 32
    return c & ~0xFFFF


def sealed(message: bytes, covered: int | None = None) -> bytes:
    cookie = int.from_bytes(message[8:16], "little") ^ check(message[:covered])
    return message[:8] + cookie.to_bytes(8, "little") + message[16:]


def field_product(a: int, b: int) -> int:
    """6.12.5"""
    product = 0
    for bit in range(8):
        if b >> bit & 1:
            product ^= a << bit
    for bit in range(14, 7, -1):
        if product >> bit & 1:
            product ^= 0x11D << bit - 8
    return product


def parity_of(segments: list[bytes], index: int) -> bytes:
    """6.12.4, 6.12.5"""
    total = [0] * len(segments[0])
    for position, segment in enumerate(segments):
        divisor = 224 + index ^ position
        coefficient = next(c for c in range(1, 256) if field_product(c, divisor) == 1)
        products = [field_product(coefficient, byte) for byte in range(256)]
        for at, byte in enumerate(segment):
            total[at] ^= products[byte]
    return bytes(total)


def job_id(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")


def now_ns() -> int:
    return time.monotonic_ns()


@dataclass
class Message:
    kind: int
    over_tcp: bool
    flags: int
    path: int
    element: int
    round: int
    tag: int = 0
    generation: int = 0
    total: int = 0
    offset: int = 0
    timestamp: int = 0
    probe_timestamp: int = 0
    critical: int = 0
    named: int = 0  # the newest packet on the only path, by a PROBE or by being it
    first: int = 0
    bits: list[bool] = field(default_factory=list)
    status: int = 0
    missing: int = 0
    payload: bytes = b""
    cause: int = 0
    path_bytes: int = 0
    floor: int = 0
    kept: tuple[int, ...] = ()


@dataclass
class Receive:
    data: bytearray
    element: int
    allowed: int
    got: set[int] = field(default_factory=set)
    critical: set[int] = field(default_factory=set)
    critical_total: int | None = 0  # None: there are some, their number is not known yet
    status: int | None = None
    rounds_over: set[int] = field(default_factory=set)
    newest: int = 0  # sequence number of what came of the transfer, and did not overtake


@dataclass
class Send:
    data: bytes
    element: int
    pending: list[int]
    unconfirmed: bool  # 4.4.6
    round: int = 0
    waits_since: float = 0.0
    status: int | None = None
    missing: int = 0


class IndependentEndpoint:
    def __init__(self, *, job: int, segment_bytes: int = 1_024, early_segments: int = 64, secret: bytes = b"") -> None:
        self.job = job
        root = hashlib.sha256(b"mlt secret" + struct.pack("<Q", len(secret)) + secret).digest()  # 3.8.12
        self.key = hmac.digest(root, b"mlt control" + struct.pack("<Q", job), "sha256")  # 3.8.3
        self.own_segment_bytes = segment_bytes
        self.early_segments = early_segments
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.udp.bind(("127.0.0.1", 0))
        self.udp.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
        self.own_cookie = 0x5EC2_E7C0_0C1E_0000 | 1  # 3.2.5: for rank 1
        self.peer_cookie = 0
        self.segment_bytes = 0
        self.frames = b""
        self.heard: list[Message] = []
        self.receives: dict[tuple[int, int], Receive] = {}
        self.sends: dict[tuple[int, int], Send] = {}
        self.next_receive: dict[int, int] = {}
        self.next_send: dict[int, int] = {}
        self.receive_floor = 0
        self.kept: set[int] = set()
        self.sequence = 0
        self.highest = self.received = self.echo = self.echo_at = self.since_ack = 0
        self.fresh = False
        self.lose_in: Callable[[Message], bool] = lambda _: False
        self.lose_out: Callable[[int], bool] = lambda _: False  # of the segments of round 0
        self.gone = False

    @property
    def control_port(self) -> int:
        return int(self.listener.getsockname()[1])

    # ---- the connection (3) ------------------------------------------------------------------------------------------

    def accept(self) -> None:
        self.listener.settimeout(10)
        self.tcp, address = self.listener.accept()
        kind, opening = self.read_frame()
        assert kind == OPEN
        assert (len(opening), opening[:8]) == (40, struct.pack("<4sHH", b"MLT1", VERSION, 0))  # 3.8.1
        answer = opening[:8] + os.urandom(32)
        self.openings = opening + answer
        self.write_frame(OPEN, answer + self.proof(LISTENING, OPEN, b""))
        kind, proved = self.read_frame()
        assert kind == HELLO
        hello, proof = proved[:-32], proved[-32:]
        assert hmac.compare_digest(proof, self.proof(CONNECTING, HELLO, hello))  # 3.8.6
        magic, version, rank, expected, size, paths, _, job, _, cookie, segment, window, early, _ = struct.unpack(
            "<4sHHHHHHQQQIIII", hello[:56]
        )
        assert (paths, len(hello)) == (1, 76)
        udp_host, udp_port = struct.unpack("<16sHxx", hello[56:])
        assert udp_host == bytes(16)  # 3.2.10: the address of this connection
        assert (magic, version, rank, expected, size, job) == (b"MLT1", VERSION, 1, 0, 2, self.job)
        assert cookie & 0xFFFF == 0
        self.peer_cookie, self.peer_address = cookie, (address[0], udp_port)
        self.segment_bytes = min(segment, self.own_segment_bytes) // 8 * 8  # 3.2.6
        self.window, self.peer_early = window, early
        port = self.udp.getsockname()[1]
        own = (b"MLT1", VERSION, 0, 1, 2, 1, self.control_port, self.job, 99, self.own_cookie)
        path = struct.pack("<16sHxx", bytes(16), port)
        fixed = struct.pack("<4sHHHHHHQQQIIII", *own, self.own_segment_bytes, 1 << 20, self.early_segments, 8)
        self.write_frame(HELLO, fixed + path + self.proof(LISTENING, HELLO, fixed + path))
        assert self.read_frame() == (CONFIRM, b"")
        self.spoke = time.monotonic()

    def proof(self, role: int, kind: int, payload: bytes) -> bytes:
        """3.8.4"""
        return hmac.digest(self.key, bytes([role, kind]) + self.openings + payload, "sha256")

    def read_frame(self) -> tuple[int, bytes]:
        while (frame := self.next_frame()) is None:
            self.frames += self.tcp.recv(65_536)
        return frame

    def next_frame(self) -> tuple[int, bytes] | None:
        if len(self.frames) < 8:
            return None
        length, kind, zeros = struct.unpack("<IB3s", self.frames[:8])
        assert zeros == b"\0\0\0"
        if len(self.frames) < 8 + length:
            return None
        payload, self.frames = self.frames[8 : 8 + length], self.frames[8 + length :]
        return kind, payload

    def write_frame(self, kind: int, payload: bytes = b"") -> None:
        self.tcp.sendall(struct.pack("<IB3x", len(payload), kind) + payload)

    def pump(self, until: Callable[[], bool], seconds: float = 10.0) -> None:
        deadline = time.monotonic() + seconds
        while not until():
            assert time.monotonic() < deadline, f"nothing more came; heard {[m.kind for m in self.heard]}"
            ready, _, _ = select.select([self.udp, self.tcp], [], [], 0.01)
            if self.udp in ready:
                self.take(self.udp.recv(65_536), over_tcp=False)
            if self.tcp in ready:
                self.frames += (piece := self.tcp.recv(65_536))
                self.gone = self.gone or not piece
                while (frame := self.next_frame()) is not None:
                    if frame[0] == FALLBACK:
                        self.take(frame[1], over_tcp=True)
                    if frame[0] == ASK:  # 3.6.6
                        self.write_frame(HEARTBEAT)
                    self.gone = self.gone or frame[0] == GOODBYE
            self.run_timers()
            if self.gone:
                return

    def run_timers(self) -> None:
        if time.monotonic() - self.spoke > 0.2:  # 3.6.1
            self.write_frame(HEARTBEAT)
            self.spoke = time.monotonic()
        for (tag, generation), send in self.sends.items():
            if send.status is None and time.monotonic() - send.waits_since > RETRY_SECONDS:  # 6.5.4
                self.probe(tag, generation, send)

    def close(self) -> None:
        self.write_frame(GOODBYE)
        for one in (self.tcp, self.udp, self.listener):
            one.close()

    # ---- datagrams (4) -----------------------------------------------------------------------------------------------

    def prefix(self, kind: int, flags: int = 0, element: int = 0, round_: int = 0, sequence: int = 0) -> bytes:
        first = struct.pack("<BBBBI", VERSION % 16 << 4 | kind, flags, element, round_ & 0xFF, sequence)
        return first + self.peer_cookie.to_bytes(8, "little")

    def block(self) -> bytes:
        self.since_ack = 0
        self.fresh = False
        hold = min(now_ns() - self.echo_at, 2**32 - 1)
        return struct.pack("<IIIII", self.highest, self.received, 0, self.echo, hold)

    def say(self, message: bytes, *, over_tcp: bool = False, covered: int | None = None) -> None:
        if message[0] & 15 in (ACK, BITMAP, STOP):  # 4.5.3; all is path 0
            sequence = 255 if over_tcp else now_ns() & 0xFFFFFF00
            message = message[:4] + sequence.to_bytes(4, "little") + message[8:]
        whole = sealed(message, covered)
        if over_tcp:
            self.write_frame(FALLBACK, whole)
        else:
            self.udp.sendto(whole, self.peer_address)

    def parse(self, data: bytes, over_tcp: bool) -> Message:
        kind = data[0] & 15
        assert data[0] >> 4 == VERSION % 16
        covered = data[:DATA_HEADER] if kind == DATA else data
        assert int.from_bytes(data[8:16], "little") ^ check(covered) == self.own_cookie  # 4.3.4
        message = Message(kind, over_tcp, data[1], data[2] >> 4, data[2] & 15, data[3])
        self.sequence_in, self.size_in = int.from_bytes(data[4:8], "little"), len(data)
        if kind == DATA:
            fields = struct.unpack("<QIIII", data[16:DATA_HEADER])
            message.tag, message.generation, message.total, message.offset, message.timestamp = fields
            message.payload, message.named = data[DATA_HEADER:], self.sequence_in
        elif kind == PROBE:
            fields = struct.unpack("<QIIII", data[16:40])
            message.tag, message.generation, message.total, message.critical, message.timestamp = fields
            paths, suspended, message.named = struct.unpack("<BxHI", data[40:48])
            assert (paths, suspended) == (1, 0)  # 4.7.6: the only path cannot be suspended
        elif kind == RETIRE:
            message.floor, count = struct.unpack("<II", data[16:24])
            message.kept = struct.unpack(f"<{count}Q", data[24:])
            message.tag, message.generation, message.probe_timestamp = 0, 0, 0
        elif kind == ABORT:
            message.tag, message.generation, message.cause, message.path_bytes = struct.unpack("<QIBxxxI", data[16:])
            assert message.cause in (1, 2, 3)  # 4.10
            assert data[29:32] == bytes(3)
        elif kind in (MTU_PROBE, MTU_REPLY):
            message.timestamp, message.total = struct.unpack("<II", data[16:24])
            assert message.total == len(data) or kind == MTU_REPLY  # 4.12.1
        else:
            message.tag, message.generation, message.probe_timestamp = struct.unpack("<QII", data[36:52])
        if kind == BITMAP:
            message.first, count = struct.unpack("<II", data[52:60])
            message.bits = [bool(data[60 + i // 8] >> (i % 8) & 1) for i in range(count)]
        elif kind == STOP:
            message.status, message.missing = struct.unpack("<BxxxI", data[52:60])
        return message

    def take(self, data: bytes, *, over_tcp: bool) -> None:
        message = self.parse(data, over_tcp)
        if not over_tcp and self.lose_in(message):
            return
        self.heard.append(message)
        take = {
            DATA: self.on_data,
            PROBE: self.on_probe,
            BITMAP: self.on_bitmap,
            STOP: self.on_stop,
            ABORT: self.on_abort,
            MTU_PROBE: self.on_mtu_probe,
            RETIRE: self.on_retire,
        }
        take.get(message.kind, lambda _: None)(message)

    def on_mtu_probe(self, message: Message) -> None:  # 4.12.2
        fields = struct.pack("<II", message.timestamp, message.total)
        self.say(self.prefix(MTU_REPLY, element=message.path << 4) + fields)

    # ---- receiving (7) -----------------------------------------------------------------------------------------------

    def post_receive(self, tag: int, total: int, *, element: int, allowed: int = 0) -> Receive:
        generation = self.next_receive.get(tag, self.receive_floor)
        self.next_receive[tag] = generation + 1
        receive = self.receives[tag, generation] = Receive(bytearray(total), element, allowed)
        return receive

    def count(self, message: Message) -> None:  # 7.2.1
        self.received += 1
        self.since_ack += 1
        if self.sequence_in > self.highest:
            self.highest, self.echo, self.echo_at, self.fresh = self.sequence_in, message.timestamp, now_ns(), True

    def on_data(self, message: Message) -> None:
        self.count(message)
        receive = self.receives.get((message.tag, message.generation))
        if receive is not None and receive.status is None:
            segment = message.offset // self.segment_bytes
            assert message.offset % self.segment_bytes == 0  # 7.1.2
            assert len(message.payload) == min(self.segment_bytes, message.total - message.offset)
            receive.data[message.offset : message.offset + len(message.payload)] = message.payload
            receive.got.add(segment)
            if not message.flags & OVERTAKES:  # 7.4.6
                receive.newest = max(receive.newest, self.sequence_in)
            if message.flags & CRITICAL:
                receive.critical.add(segment)
            if message.flags & HAS_CRITICAL and receive.critical_total == 0:
                receive.critical_total = None
        if self.since_ack >= 10:  # 7.2.4
            flags = (POSTED if receive else 0) | (ACK_ECHO if self.fresh else 0)
            transfer = struct.pack("<QII", message.tag, message.generation, 0)
            self.say(self.prefix(ACK, flags) + self.block() + transfer)
        if receive is not None:
            self.check_completion(message, receive, over=bool(message.flags & END_OF_ROUND))

    def on_probe(self, message: Message) -> None:
        receive = self.receives.get((message.tag, message.generation))
        if message.flags & TRAILING:
            self.count(message)
            if receive is not None:
                receive.newest = max(receive.newest, self.sequence_in)  # 7.4.6
            if receive is None or receive.status is not None or message.round in receive.rounds_over:
                return None  # 7.4.8: evidence only
        if receive is None:  # 7.3.4
            fields = struct.pack("<QIIII", message.tag, message.generation, message.timestamp, 0, 0)
            answer = self.prefix(BITMAP, NOT_POSTED, round_=message.round) + self.block() + fields
            return self.say(answer, over_tcp=message.over_tcp)
        if message.flags & PROBE_CRITICAL:
            receive.critical_total = message.critical
        if message.flags & ACK_ONLY and receive.status is None:  # 7.4.2
            fields = struct.pack("<QII", message.tag, message.generation, message.timestamp)
            return self.say(self.prefix(ACK, POSTED) + self.block() + fields, over_tcp=message.over_tcp)
        return self.check_completion(message, receive, over=True)

    def on_abort(self, message: Message) -> None:  # 8.1.6
        receive = self.receives.get((message.tag, message.generation))
        fields = struct.pack("<QII", message.tag, message.generation, 0)
        if receive is None:
            return self.say(self.prefix(BITMAP, NOT_POSTED) + self.block() + fields + bytes(8), over_tcp=True)
        if receive.status is None:
            receive.status = 5  # 8.1.2
        end = struct.pack("<BxxxII", receive.status, 0, len(receive.data))
        return self.say(self.prefix(STOP, element=receive.element) + self.block() + fields + end, over_tcp=True)

    def on_retire(self, message: Message) -> None:  # 5.2.7; no receive of this one is ever posted ahead of its send
        self.kept |= set(message.kept)
        if message.flags & RETIRE_LAST:
            self.receive_floor = message.floor
            self.next_receive = {tag: generation for tag, generation in self.next_receive.items() if tag in self.kept}
            self.kept = set()

    def check_completion(self, message: Message, receive: Receive, *, over: bool) -> None:
        """7.5. Without evidence (7.4.6) it asks at once: what is late costs a repetition, and loopback is quick."""
        if over:
            receive.rounds_over.add(message.round)
        total = len(receive.data)
        count = max(1, -(-total // self.segment_bytes))
        missing = sum(
            min(self.segment_bytes, total - i * self.segment_bytes) for i in range(count) if i not in receive.got
        )
        if receive.status is None:
            all_critical = receive.critical_total is not None and len(receive.critical) >= receive.critical_total
            if missing == 0:
                receive.status = 0
            elif over and missing <= receive.allowed and all_critical and receive.newest >= message.named:
                receive.status = 1
            elif over and (missing > receive.allowed or receive.critical_total is not None):  # 7.5.6, 7.5.7
                self.ask_for_the_rest(message, receive, count)
            if receive.status is None:
                return
        elif not over:
            return  # 7.7.5
        probe_timestamp = message.timestamp if message.kind == PROBE else 0
        fields = struct.pack("<QII", message.tag, message.generation, probe_timestamp)
        end = struct.pack("<BxxxII", receive.status, missing, total)
        self.say(self.prefix(STOP, element=receive.element) + self.block() + fields + end, over_tcp=message.over_tcp)

    def ask_for_the_rest(self, message: Message, receive: Receive, count: int) -> None:
        for first in range(0, count, CHUNK):
            bits = [i in receive.got for i in range(first, min(first + CHUNK, count))]
            if all(bits):
                continue  # 7.6.1
            packed = bytes(sum(bit << i for i, bit in enumerate(bits[at : at + 8])) for at in range(0, len(bits), 8))
            fields = struct.pack("<QIIII", message.tag, message.generation, 0, first, len(bits))
            answer = self.prefix(BITMAP, round_=message.round) + self.block() + fields + packed
            self.say(answer, over_tcp=message.over_tcp)

    # ---- sending (6) -------------------------------------------------------------------------------------------------

    def post_send(self, tag: int, data: bytes, *, element: int, parities: int = 0) -> Send:
        generation = self.next_send.get(tag, 0)
        self.next_send[tag] = generation + 1
        count = max(1, -(-len(data) // self.segment_bytes))
        assert count <= self.peer_early  # 6.4.1: this sender has no patience to wait for READY
        assert count * (self.segment_bytes + DATA_HEADER) <= self.window  # 6.3.2
        send = self.sends[tag, generation] = Send(data, element, list(range(count)), not self.heard)
        self.send_round(tag, generation, send, parities)
        return send

    def send_round(self, tag: int, generation: int, send: Send, parities: int = 0) -> None:
        for at, segment in enumerate(send.pending):
            self.sequence += 1  # 4.4.4
            flags = (
                (REPAIR if send.round else 0)
                | (UNCONFIRMED if send.unconfirmed else 0)
                | (END_OF_ROUND if at == len(send.pending) - 1 and not parities else 0)
            )
            offset = segment * self.segment_bytes
            header = self.prefix(DATA, flags, send.element, send.round, self.sequence)
            header += struct.pack("<QIIII", tag, generation, len(send.data), offset, now_ns() & 0xFFFFFFFF)
            if send.round > 0 or not self.lose_out(segment):
                payload = send.data[offset : offset + self.segment_bytes]
                self.say(header + payload, covered=DATA_HEADER)
        if parities:
            self.send_parity(tag, generation, send, parities)
        send.pending = []
        send.waits_since = time.monotonic()

    def send_parity(self, tag: int, generation: int, send: Send, parities: int) -> None:
        segments = [send.data[at : at + self.segment_bytes] for at in range(0, len(send.data), self.segment_bytes)]
        blocks = -(-len(segments) // 224)
        length = -(-len(segments) // blocks)  # 6.12.3
        blocks = -(-len(segments) // length)
        for block, index in ((block, index) for block in range(blocks) for index in range(parities)):
            self.sequence += 1
            flags = END_OF_ROUND if (block, index) == (blocks - 1, parities - 1) else 0  # 6.12.2
            header = self.prefix(PARITY, flags, send.element, 0, self.sequence)
            fields = (tag, generation, len(send.data), block, length, index, now_ns() & 0xFFFFFFFF)
            header += struct.pack("<QIIHBBI", *fields)
            payload = parity_of(segments[block * length : (block + 1) * length], index)
            self.say(header + payload, covered=DATA_HEADER)

    def probe(self, tag: int, generation: int, send: Send) -> None:
        timestamp = (now_ns() & 0xFFFFFFFF) or 1
        fields = struct.pack("<QIIII", tag, generation, len(send.data), 0, timestamp)
        paths = struct.pack("<BxxxI", 1, self.sequence)
        self.say(self.prefix(PROBE, 0, send.element, send.round) + fields + paths)
        send.waits_since = time.monotonic()

    def on_bitmap(self, message: Message) -> None:
        send = self.sends.get((message.tag, message.generation))
        if send is None or send.status is not None or not message.bits or message.round != send.round:
            return  # 6.7.1, 6.7.2
        send.pending = [message.first + i for i, bit in enumerate(message.bits) if not bit]
        send.round += 1
        self.send_round(message.tag, message.generation, send)

    def on_stop(self, message: Message) -> None:
        send = self.sends.get((message.tag, message.generation))
        if send is not None and send.status is None:
            send.status, send.missing = message.status, message.missing
