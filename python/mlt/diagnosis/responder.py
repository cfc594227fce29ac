"""``mlt doctor --serve``: serves one examination at a time, so that they do not disturb each other's measurements.

The number of waiting clients is bounded, and hosts take turns, so that one host cannot lock out the others. A client
costs one TCP connection and one UDP socket, for at most ``SESSION_SECONDS``; datagrams are sent only to the address
that opened the TCP connection, within the byte limits of ``allowance``: the responder cannot be used to flood.
"""

from __future__ import annotations

import contextlib
import errno
import secrets
import selectors
import socket
import struct
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from mlt._shared.json_lines import quoted
from mlt._shared.link import Link, LinkError
from mlt._shared.patience import Patience
from mlt.diagnosis.allowance import Allowance, Allowances, host_of
from mlt.diagnosis.datagrams import HEADER, MAX_DATAGRAM, Port
from mlt.diagnosis.messages import MAX_LINE, VERSION, hear, make_hello, open_link, read_hello
from mlt.errors import PortInUseError
from mlt.job import interfaces
from mlt.job.handshake_server import Caller, HandshakeServer
from mlt.options.qos import DscpMap

IDLE_SECONDS = 15.0
REPORT_SECONDS = 10.0
SESSION_SECONDS = 120.0
# Exceptions that reading a client's JSON may raise: infinite or too long numbers, deep nesting, missing fields.
NOT_A_QUESTION = (ArithmeticError, LookupError, RecursionError, TypeError, ValueError, struct.error)
MAX_TESTS = 1_024
# Clients waiting for their turn: all, and those of one host.
MAX_WAITING, MAX_WAITING_OF_HOST = 128, 32
# Number of hosts whose last turn is remembered.
MAX_HOSTS = 1_024
MAX_COUNT, MAX_INTERVAL = 2_000, 0.01
LONGEST_WAIT = 2.0
# Max length of an error that repeats a client's input.
MAX_ERROR = 300

Say = Callable[[str], None]


@dataclass(frozen=True)
class Visit:
    """The end of an examination. ``problems``: number that the client found; None if it broke off."""

    address: str
    name: str
    problems: int | None


class Responder:
    """Listens at ``addresses`` (none: at all addresses of this host). Raises PortInUseError."""

    def __init__(
        self, port: int, dscp: DscpMap, *, addresses: Sequence[str] = (), say: Say = lambda text: None
    ) -> None:
        self._dscp = dscp
        self._say = say
        self._allowances = Allowances()
        self._listeners: list[socket.socket] = []
        self._handshakes = HandshakeServer("doctor", VERSION, None, proof=False)
        self._waiting: list[Caller] = []
        self._turns: OrderedDict[str, None] = OrderedDict()  # hosts; the latest turn last
        self._reported = ""
        try:
            for address in addresses or ("0.0.0.0", "::"):
                self._listen(address, port)
            if not self._listeners:
                raise PortInUseError(f"this host has no IP address to listen at (port {port}); bring an interface up")
        except BaseException:
            self.close()
            raise

    def _listen(self, address: str, port: int) -> None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        try:
            listener = socket.socket(family, socket.SOCK_STREAM)
        except OSError:  # a host without that IP version
            return
        self._listeners.append(listener)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            # The same port for both versions, even if the system chose it.
            listener.bind((address, port or (self.port if len(self._listeners) > 1 else 0)))
            listener.listen(64)
        except OSError as error:
            if error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT) and address == "::":
                self._listeners.pop().close()
                return
            way_out = "choose another --port (the same on both sides), or end the program that uses it (ss -lntp)"
            if error.errno in (errno.EACCES, errno.EPERM):
                way_out = "choose a --port above 1023"
            raise PortInUseError(f"cannot listen at {address} port {port}: {error.strerror}; {way_out}") from (error)
        self._handshakes.add(listener)

    @property
    def port(self) -> int:
        """The TCP port it listens on."""
        return int(self._listeners[0].getsockname()[1])

    def close(self) -> None:
        """Stop listening."""
        for listener in self._listeners:
            listener.close()
        for caller in self._waiting:
            caller.connection.close()
        self._handshakes.close()

    def serve_one(self, seconds: float | None = None, waiting_text: Callable[[], str] | None = None) -> Visit | None:
        """Wait for a client and serve it to its end; None if none connected in time. A long wait is reported with
        ``waiting_text``, if there is one."""
        deadline, patience = None if seconds is None else time.monotonic() + seconds, Patience()
        while not self._waiting:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return None
            until_report = REPORT_SECONDS
            if waiting_text is not None:
                patience.ask(waiting_text)
                until_report = patience.left
            # Clients that sent a request, one after another; silent ones do not delay the others.
            self._queue(self._handshakes.wait(until_report if left is None else min(left, until_report)))
            if self._reported != (rejected := self._handshakes.rejected_text()):
                self._reported = rejected
                self._say(f"connections rejected so far: {rejected}")
        self._attend()  # clients that connected in the meantime
        caller = self._next()
        with caller.connection as connection:
            try:
                link = open_link(connection, caller.content.encode() + b"\n" + caller.received)
            except OSError:  # already disconnected
                return Visit(caller.address, "", None)
            return self._answer(link, caller.address)

    def _attend(self) -> None:
        """Accept clients, also while another one is served."""
        self._queue(self._handshakes.turn())

    def _queue(self, callers: Sequence[Caller]) -> None:
        for caller in callers:
            self._waiting.append(caller)
            crowd = Counter(host_of(one.address) for one in self._waiting)
            host = host_of(caller.address)
            if len(self._waiting) > MAX_WAITING:
                host = max(crowd, key=lambda one: crowd[one])
            elif crowd[host] <= MAX_WAITING_OF_HOST:
                continue
            last = [one for one in self._waiting if host_of(one.address) == host][-1]
            self._waiting.remove(last)
            self._handshakes.count("refusals")
            last.say({"error": f"{crowd[host] - 1} examinations of this host wait already; try again later"})
            last.connection.close()

    def _next(self) -> Caller:
        """The first client of the host whose last turn was longest ago."""
        turns = {host: number for number, host in enumerate(self._turns)}
        caller = min(self._waiting, key=lambda one: turns.get(host_of(one.address), -1))
        self._waiting.remove(caller)
        host = host_of(caller.address)
        self._turns[host] = None
        self._turns.move_to_end(host)
        if len(self._turns) > MAX_HOSTS:
            self._turns.popitem(last=False)
        return caller

    def _answer(self, link: Link, caller: str) -> Visit:
        name = ""
        try:
            message = hear(link, IDLE_SECONDS)
            own = link.local_host
            with contextlib.closing(Port(own, secrets.randbits(64))) as port:
                interface = interfaces.interface_of(own)
                link.send(
                    asdict(
                        make_hello(
                            self._dscp,
                            interface=interface.name if interface else own,
                            mtu=interface.mtu if interface else 1_500,
                            buffer=port.granted_bytes,
                            port=port.number,
                            token=port.token,
                        )
                    ),
                    timeout=IDLE_SECONDS,
                )
                hello = read_hello(message)
                name = hello.host
                port.peer = (caller, hello.port)
                port.interface_mtu = interface.mtu if interface else 1_500
                port.allowance = self._allowances.of(caller)
                return Visit(caller, name, _Session(link, port, port.allowance).run(self._handshakes, self._attend))
        except (LinkError, OSError) as error:
            self._say(f"{caller}: {quoted(str(error), MAX_ERROR)}")
            return Visit(caller, name, None)
        except NOT_A_QUESTION as error:
            self._say(f"{caller}: not a request of mlt doctor ({type(error).__name__}: {quoted(str(error))})")
            return Visit(caller, name, None)


class _Session:
    """One client's requests, served until its bye."""

    def __init__(self, link: Link, port: Port, allowance: Allowance) -> None:
        self._link = link
        self._port = port
        self._allowance = allowance

    def run(self, handshakes: HandshakeServer, attend: Callable[[], None]) -> int:
        """The number of problems that the client found. ``attend`` is called when ``handshakes`` has work to do. Raises
        LinkError."""
        end = time.monotonic() + SESSION_SECONDS
        last_request = time.monotonic()
        with selectors.DefaultSelector() as selector:
            selector.register(self._link, selectors.EVENT_READ)
            selector.register(self._port.socket, selectors.EVENT_READ)
            selector.register(handshakes, selectors.EVENT_READ)
            while True:
                now = time.monotonic()
                if now >= min(end, last_request + IDLE_SECONDS):
                    raise LinkError("the client sent nothing any more" if now < end else "it took too long")
                patience = min(end - now, last_request + IDLE_SECONDS - now, handshakes.seconds_left())
                ready = {key.fileobj for key, _ in selector.select(patience)}
                attend()
                if not self._port.receive_all():
                    self._port.errors()
                message = self._link.receive_ready(limit=MAX_LINE) if self._link in ready else None
                while message is not None and time.monotonic() < end:
                    last_request = time.monotonic()
                    if message.get("do") == "bye":
                        return int(message.get("problems", 0))
                    self._link.send(self._reply(message), timeout=IDLE_SECONDS)
                    message = self._link.take(MAX_LINE)

    def _reply(self, message: dict[str, Any]) -> dict[str, Any]:
        try:
            test = int(message["test"])
            if test not in self._port.tallies and len(self._port.tallies) >= MAX_TESTS:
                return {"error": f"more than {MAX_TESTS} tests"}
            if message["do"] == "expect":
                self._port.expect(test)
                return {"ok": True}
            if message["do"] == "tally":
                seconds = min(float(message["seconds"]), LONGEST_WAIT)
                tally = self._port.wait(test, int(message["least"]), seconds)
                if self._allowance.is_spent:  # echoes without a reply are then no loss of the network's
                    return {"error": self._allowance.refusal}
                return {"received": tally.received, "classes": {str(one): n for one, n in tally.classes.items()}}
            if message["do"] == "send":
                count = min(max(int(message["count"]), 0), MAX_COUNT)
                size = min(max(int(message["size"]), HEADER.size), MAX_DATAGRAM)
                if not self._allowance.take(count * (size + self._port.overhead)):
                    return {"error": self._allowance.refusal}
                interval = min(max(float(message["interval"]), 0.0), MAX_INTERVAL)
                sent = self._port.send_many(test, count, size, int(message["class"]) & 0xFF, interval)
                return {"count": sent.count, "errno": sent.error, "mtu": sent.mtu, "by": sent.by}
        except NOT_A_QUESTION as error:
            return {"error": f"not a valid request ({quoted(str(error))})"}
        return {"error": f"no answer to {quoted(message.get('do'))!r}"}
