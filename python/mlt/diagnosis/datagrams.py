"""A UDP socket that reports how its datagrams travelled: DSCP and ECN in both directions, no fragmentation, errors with
a cause.

Every datagram starts with 24 bytes: "mltd", kind, three zero bytes, the session's token (8), test and sequence number
(4 each), little-endian; the rest is zeros. Sending a datagram larger than the interface's MTU fails; if a router
reports that one is larger than the path's MTU, that gives a ``PathError``.
"""

from __future__ import annotations

import contextlib
import errno
import select
import socket
import struct
import time
from dataclasses import dataclass, field

from mlt.diagnosis.allowance import Allowance

HEADER = struct.Struct("<4sB3xQII")
MAGIC = b"mltd"
COUNT, ECHO, REPLY = 1, 2, 3
ECT_0, _ECN = 2, 3  # in the traffic class, whose upper six bits are the DSCP
MAX_DATAGRAM = 65_507
# Bytes of an IP packet not available to a datagram: IP and UDP headers.
HEADERS = {socket.AF_INET: 28, socket.AF_INET6: 48}
# Carried by every network: the min MTU of IPv6, and the size that IPv4 hosts must reassemble.
MIN_PACKET = {socket.AF_INET: 576, socket.AF_INET6: 1_280}
BUFFER_BYTES = 8 << 20

_SO_SNDBUFFORCE, _SO_RCVBUFFORCE = 32, 33
_IP_MTU_DISCOVER, _IP_RECVERR, _IP_RECVTOS, _IP_TOS = 10, 11, 13, 1
_IPV6_MTU_DISCOVER, _IPV6_RECVERR, _IPV6_RECVTCLASS, _IPV6_TCLASS = 23, 25, 66, 67
# DF is set, and the kernel's cached path MTU does not block a packet that fits the interface.
_PMTUDISC_PROBE = 3
_MSG_ERRQUEUE = 0x2000
_ORIGIN_LOCAL = 1
_EXTENDED_ERROR = struct.Struct("=IBBBBII")
# Errors that an ICMP message about an earlier datagram left on the socket.
_PENDING = (errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EMSGSIZE, errno.EPROTO, errno.EACCES)


@dataclass(frozen=True)
class PathError:
    """A datagram was too big. ``mtu``: of the hop that dropped it. ``by``: address that reported it."""

    mtu: int
    by: str
    is_local: bool


@dataclass
class Tally:
    """Datagrams of one test that arrived: how many, by traffic class (DSCP and ECN) on arrival."""

    received: int = 0
    classes: dict[int, int] = field(default_factory=dict)

    def add(self, traffic_class: int) -> None:
        self.received += 1
        self.classes[traffic_class] = self.classes.get(traffic_class, 0) + 1


@dataclass
class Sent:
    """Result of sending a test's datagrams. ``error``: errno of the last failed send, 0 if none."""

    count: int = 0
    error: int = 0
    mtu: int = 0  # path MTU as reported by a router; 0: no report
    by: str = ""


class Port:
    """One socket. ``peer``: destination of datagrams; those from another source or without the token are ignored."""

    def __init__(self, address: str, token: int) -> None:
        self.family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self.token = token
        self.peer: tuple[str, int] | None = None
        self.interface_mtu = 1 << 16
        self.allowance: Allowance | None = None  # None: no limit
        self.said: PathError | None = None  # the latest report on the path's MTU
        self.tallies: dict[int, Tally] = {}
        self.socket = socket.socket(self.family, socket.SOCK_DGRAM)
        try:
            self._set_up()
            self.socket.bind((address, 0))
        except BaseException:
            self.socket.close()
            raise
        self.number = int(self.socket.getsockname()[1])
        self.overhead = HEADERS[self.family]

    def _set_up(self) -> None:
        sock = self.socket
        sock.setblocking(False)
        for force, plain in ((_SO_RCVBUFFORCE, socket.SO_RCVBUF), (_SO_SNDBUFFORCE, socket.SO_SNDBUF)):
            # Like the engine: exceeds the system's limit if privileged (CAP_NET_ADMIN).
            try:
                sock.setsockopt(socket.SOL_SOCKET, force, BUFFER_BYTES)
            except OSError:
                sock.setsockopt(socket.SOL_SOCKET, plain, BUFFER_BYTES)
        if self.family == socket.AF_INET:
            sock.setsockopt(socket.IPPROTO_IP, _IP_MTU_DISCOVER, _PMTUDISC_PROBE)
            sock.setsockopt(socket.IPPROTO_IP, _IP_RECVERR, 1)
            sock.setsockopt(socket.IPPROTO_IP, _IP_RECVTOS, 1)
        else:
            sock.setsockopt(socket.IPPROTO_IPV6, _IPV6_MTU_DISCOVER, _PMTUDISC_PROBE)
            sock.setsockopt(socket.IPPROTO_IPV6, _IPV6_RECVERR, 1)
            sock.setsockopt(socket.IPPROTO_IPV6, _IPV6_RECVTCLASS, 1)

    def close(self) -> None:
        self.socket.close()

    @property
    def granted_bytes(self) -> int:
        """Payload that the receive buffer holds: half of what the kernel reports."""
        return self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) // 2

    def send(self, kind: int, test: int, sequence: int, size: int, traffic_class: int) -> int:
        """Send one datagram of ``size`` bytes; returns 0 or errno."""
        data = HEADER.pack(MAGIC, kind, self.token, test, sequence).ljust(size, b"\0")
        if self.family == socket.AF_INET:
            control = (socket.IPPROTO_IP, _IP_TOS, struct.pack("=i", traffic_class))
        else:
            control = (socket.IPPROTO_IPV6, _IPV6_TCLASS, struct.pack("=i", traffic_class))
        number = errno.EAGAIN
        for _ in range(4):
            try:
                self.socket.sendmsg([data], [control], 0, self.peer)
            except BlockingIOError:
                select.select([], [self.socket], [], 0.1)
            except OSError as error:
                number = error.errno or errno.EIO
                if number == errno.ENOBUFS:
                    return 0  # dropped by a queue of this host: lost like anywhere else on the path
                # Each pending error is reported once and is unrelated to this datagram, except that it is larger than
                # the interface's MTU.
                room = min(MAX_DATAGRAM, self.interface_mtu - self.overhead)
                if number not in _PENDING or (number == errno.EMSGSIZE and size > room):
                    return number
            else:
                return 0
        return number

    def send_many(self, test: int, count: int, size: int, traffic_class: int, interval: float) -> Sent:
        """Send a test's datagrams, ``interval`` seconds apart. With a ``count`` of 0: only the reports since the last
        test."""
        if count:
            self.errors()
            self.said = None  # a report about an earlier test
        done = Sent()
        for sequence in range(count):
            if sequence and interval > 0:
                time.sleep(interval)
            number = self.send(COUNT, test, sequence, size, traffic_class)
            if number:
                done.error = number
            else:
                done.count += 1
        self.heed(done)
        return done

    def heed(self, sent: Sent) -> None:
        """Add the network's reports on the path since to ``sent``."""
        self.errors()
        if self.said is not None:
            sent.mtu, sent.by = self.said.mtu, "this host" if self.said.is_local else self.said.by

    def errors(self) -> None:
        """Read ICMP errors from the socket; keeps the report on the path's MTU."""
        while True:
            try:
                _, control, _, _ = self.socket.recvmsg(1, 512, _MSG_ERRQUEUE)
            except OSError:
                return
            for level, kind, data in control:
                is_error = (level, kind) in (
                    (socket.IPPROTO_IP, _IP_RECVERR),
                    (socket.IPPROTO_IPV6, _IPV6_RECVERR),
                )
                if is_error and len(data) >= _EXTENDED_ERROR.size:
                    number, origin, _, _, _, info, _ = _EXTENDED_ERROR.unpack_from(data)
                    if number == errno.EMSGSIZE and info:
                        self.said = PathError(int(info), _offender(data), origin == _ORIGIN_LOCAL)

    def receive(self) -> tuple[int, int, int, int, int] | None:
        """(kind, test, sequence, size, traffic class) of one datagram of this session, counted in its test's tally;
        else None."""
        try:
            data, control, _, source = self.socket.recvmsg(1 << 16, 128)
        except OSError:
            return None  # no datagram, or an error that errors() reads
        if len(data) < HEADER.size:
            return None
        magic, kind, token, test, sequence = HEADER.unpack_from(data)
        if magic != MAGIC or token != self.token or self.peer is None or source[0] != self.peer[0]:
            return None
        traffic_class = 0
        for level, what, value in control:
            if (level, what) == (socket.IPPROTO_IP, _IP_TOS):
                traffic_class = value[0]  # this one message is a byte, not an int
            elif (level, what) == (socket.IPPROTO_IPV6, _IPV6_TCLASS):
                (traffic_class,) = struct.unpack("=i", value)
        # Otherwise a client with the token could fill the memory with tests.
        if test in self.tallies:
            self.tallies[test].add(traffic_class)
        return kind, test, sequence, len(data), traffic_class

    def receive_all(self) -> bool:
        """Read all queued datagrams; True if there were any. Echoes are replied to within the allowance."""
        any_ = False
        while (got := self.receive()) is not None:
            any_ = True
            kind, test, sequence, size, traffic_class = got
            if kind == ECHO and (self.allowance is None or self.allowance.take(size + self.overhead)):
                # In the echo's class, so that both directions are measured in it; a CE mark was for the way here.
                self.send(REPLY, test, sequence, size, traffic_class & ~_ECN | (ECT_0 if traffic_class & _ECN else 0))
        return any_

    def expect(self, test: int) -> Tally:
        """Count the datagrams of ``test`` from now on."""
        return self.tallies.setdefault(test, Tally())

    def wait(self, test: int, minimum: int, seconds: float) -> Tally:
        """The tally of ``test`` once ``minimum`` datagrams have arrived or the time is up."""
        tally = self.expect(test)
        deadline = time.monotonic() + seconds
        while tally.received < minimum and (left := deadline - time.monotonic()) > 0:
            select.select([self.socket], [], [], left)
            if not self.receive_all():
                self.errors()  # a pending error polls readable too
        self.receive_all()
        return tally


def _offender(data: bytes) -> str:
    """Sender of the ICMP message: the address after the extended error."""
    rest = data[_EXTENDED_ERROR.size :]
    with contextlib.suppress(ValueError, struct.error):
        (family,) = struct.unpack_from("=H", rest)
        if family == socket.AF_INET:
            return socket.inet_ntop(family, rest[4:8])
        if family == socket.AF_INET6:
            return socket.inet_ntop(family, rest[8:24])
    return "unknown"
