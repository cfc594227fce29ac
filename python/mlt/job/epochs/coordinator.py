"""``Coordinator``: the membership coordinator of an elastic job, which its members connect to.

It is needed when members change, and at no other time: while it is away, the running epoch goes on. One that is started
again at the same address learns the running epoch from the members, which connect again. Clients come through a
``HandshakeServer``: one that has not proved the job's secret receives no field of the job. Single-threaded; without a
blocking read or write.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import selectors
import socket
import threading
import time
from collections import Counter
from types import TracebackType

from mlt._shared.json_lines import quoted
from mlt._shared.link import Link, LinkError, Message
from mlt._shared.name_lookup import look_up
from mlt._shared.os_errors import cause_of
from mlt.errors import ConfigError, PortInUseError
from mlt.job import secret as secret_module
from mlt.job.configuration import DEFAULT_JOB
from mlt.job.epochs.messages import NAME, VERSION, Announced, Hello, ProvedLink, checked, ids_of, number_of
from mlt.job.epochs.roster import RefusedError, Roster
from mlt.job.epochs.settings import Bounds, Place
from mlt.job.handshake_server import Caller, HandshakeServer
from mlt.job.secret import JobSecret

_BACKLOG = 128
_EXPECTED = 192
# For a member to read what does not fit into the buffers of its connection, such as the addresses of many members.
_SEND_SECONDS = 10.0

logger = logging.getLogger("mlt")


class Coordinator:
    """Listens from its construction on; ``run`` serves until ``stop``. ``place``: port 0 takes a free one.

    Raises ConfigError (no secret, and not on loopback) or PortInUseError.
    """

    def __init__(
        self,
        place: Place,
        bounds: Bounds,
        *,
        job: str = DEFAULT_JOB,
        secret: JobSecret | None = None,
        insecure: bool = False,
    ) -> None:
        self._roster = Roster(bounds)
        self._job = job
        self._listener = _listen(place, secret, insecure)
        self.place = Place(place.host, self._listener.getsockname()[1])
        self.counts: Counter[str] = Counter()
        self._handshakes = HandshakeServer(
            NAME, VERSION, secret, expected=_EXPECTED, counts=self.counts, report=self._report
        )
        self._handshakes.add(self._listener)
        self._links: dict[str, ProvedLink] = {}
        self._send_by: dict[ProvedLink, float] = {}  # where messages are left to send: until when
        self._last: set[ProvedLink] = set()  # closed once all is sent
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._handshakes, selectors.EVENT_READ)
        self._wake, self._waker = socket.socketpair()
        self._selector.register(self._wake, selectors.EVENT_READ)
        self._lock = threading.Lock()
        self._expected: tuple[int, int] | None = None
        self._is_stopped = False

    def __enter__(self) -> Coordinator:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def expect(self, workers: int, services: int) -> None:
        """Await no more than these for the first epoch; from any thread."""
        with self._lock:
            self._expected = workers, services
        self._wake_up()

    def stop(self) -> None:
        """Let ``run`` return; from any thread."""
        self._is_stopped = True
        self._wake_up()

    def close(self) -> None:
        """Close all connections. The members go on until the next change. Idempotent."""
        for link in self._links.values():
            link.link.close()
        self._links.clear()
        self._send_by.clear()
        self._last.clear()
        self._selector.close()
        self._handshakes.close()
        self._listener.close()
        self._wake.close()
        self._waker.close()

    def run(self) -> None:
        """Serve the members until ``stop``.

        An error of its own ends it, and closes all connections: the members learn that it is gone.
        """
        try:
            self._serve()
        except BaseException as error:
            self._end_by(error)
            raise

    def _end_by(self, error: BaseException) -> None:
        if isinstance(error, Exception):
            logger.error(
                "membership coordinator at %s: it has failed (%s: %s): the running epoch goes on, and the next change "
                "of members ends the job; please report this", self.place, type(error).__name__, error,
            )  # fmt: skip
        self.close()

    def _serve(self) -> None:
        until: float | None = None
        while not self._is_stopped:
            maximum = self._handshakes.seconds_left()
            for time_limit in (until, min(self._send_by.values(), default=None)):
                if time_limit is not None:
                    maximum = min(maximum, max(time_limit - time.monotonic(), 0.0))
            for key, events in self._selector.select(maximum):
                if key.fileobj is self._wake:
                    self._wake.recv(4_096)
                elif key.data is not None:
                    if events & selectors.EVENT_WRITE and (link := self._links.get(key.data)) is not None:
                        self._flush(key.data, link)
                    if events & selectors.EVENT_READ:
                        self._read(key.data)
            self._lose_deaf()
            for caller in self._handshakes.turn():
                self._admit(caller)
            with self._lock:
                expected, self._expected = self._expected, None
            if expected is not None:
                self._roster.expect(*expected)
            until = self._decide()

    def _decide(self) -> float | None:
        """Carry out what the roster decides; the time of its next decision."""
        while True:
            number, was_forming = self._roster.number, self._is_forming()
            until = self._roster.turn(time.monotonic())
            messages = self._roster.take()
            if was_forming and not self._is_forming() and self._roster.number == number:
                self._log_epoch()
            if not messages:
                return until
            for member, message in messages:
                self._send(member, message)

    def _is_forming(self) -> bool:
        epoch = self._roster.epoch
        return epoch is not None and epoch.is_forming

    def _log_epoch(self) -> None:
        epoch = self._roster.epoch
        if epoch is not None:
            logger.info(
                "membership coordinator: epoch %d has begun: workers %d, services %d",
                epoch.number, len(epoch.workers), len(epoch.services),
            )  # fmt: skip

    def _wake_up(self) -> None:
        try:
            self._waker.send(b"w", socket.MSG_DONTWAIT)
        except OSError:  # it is awake already, or closed
            return

    def _report(self, text: str) -> None:
        logger.warning("membership coordinator: %s", text)

    def _admit(self, caller: Caller) -> None:
        link = ProvedLink(Link(caller.connection, received=caller.received), caller.prover)
        try:
            hello = Hello.parse(caller.content)
        except ValueError:
            self._refuse(caller, link, "it sent no valid message; install the same mlt release everywhere")
            return
        before = self._links.pop(hello.member, None)
        if before is not None:  # its connection broke, which this end has not noticed yet
            self._forget(before)
        try:
            self._roster.join(time.monotonic(), hello, self._job)
        except RefusedError as error:
            name = f"{hello.kind} {quoted(hello.name)} [{caller.address}]"
            self._report(f"refused {name}: {error}")
            self._refuse(caller, link, str(error), error.code)
            return
        link.name = str(self._roster.members[hello.member])
        link.link.watch_network()
        self._links[hello.member] = link
        self._selector.register(link.link, selectors.EVENT_READ, hello.member)
        self._take(hello.member, link)  # what came together with the first message

    def _refuse(self, caller: Caller, link: ProvedLink, text: str, code: str = "peer_mismatch") -> None:
        self._handshakes.count("refusals")
        with contextlib.suppress(LinkError):
            link.send({"refused": text, "code": code})
        caller.connection.close()

    def _read(self, member: str) -> None:
        link = self._links.get(member)
        if link is None:
            return
        try:
            message = link.receive_ready()
        except LinkError as error:
            self._lose(member, str(error))
            return
        if message is not None:
            self._on_message(member, message)
            self._take(member, link)

    def _take(self, member: str, link: ProvedLink) -> None:
        """Process messages that have arrived already."""
        while self._links.get(member) is link:
            try:
                message = link.take()
            except LinkError as error:
                self._lose(member, str(error))
                return
            if message is None:
                return
            self._on_message(member, message)

    def _on_message(self, member: str, message: Message) -> None:
        now = time.monotonic()
        if member not in self._roster.members:
            return  # it was refused, and learns it
        try:
            if "was" in message:
                number = checked(lambda: number_of(message["was"]))
                workers = checked(lambda: ids_of(message["workers"]))
                services = checked(lambda: ids_of(message["services"]))
                self._roster.was(now, member, number, workers, services)
            elif "ping" in message:
                self._send(member, {"pong": 1})
            elif "ready" in message:
                self._roster.ready(now, member)
            elif "here" in message:
                number = checked(lambda: number_of(message["here"]))
                self._roster.here(member, number, checked(lambda: Announced.parse(message)))
            elif "left" in message:
                self._roster.left(member)
                self._forget(self._links.pop(member))
            else:
                raise LinkError("an unknown message; install the same mlt release everywhere")
        except LinkError as error:
            self._lose(member, str(error))

    def _lose(self, member: str, why: str) -> None:
        link = self._links.pop(member, None)
        if link is not None:
            self._forget(link)
        if member in self._roster.members:
            self._report(f"{self._roster.members[member]} is lost: {why}")
        self._roster.lost(member, why)

    def _send(self, member: str, message: Message) -> None:
        link = self._links.get(member)
        if link is None:
            return
        if "refused" in message:
            self._report(f"{link.name} is refused: {message['refused']}")
        if "refused" in message or "end" in message:
            self._last.add(link)
        link.post(message)
        self._flush(member, link)

    def _flush(self, member: str, link: ProvedLink) -> None:
        """Send what the connection accepts, and have the rest sent once it accepts more."""
        try:
            is_done = link.flush()
        except LinkError as error:
            self._lose(member, str(error))
            return
        if is_done and link in self._last:
            self._forget(self._links.pop(member))
        elif is_done and self._send_by.pop(link, None) is not None:
            self._selector.modify(link.link, selectors.EVENT_READ, member)
        elif not is_done and link not in self._send_by:
            self._send_by[link] = time.monotonic() + _SEND_SECONDS
            self._selector.modify(link.link, selectors.EVENT_READ | selectors.EVENT_WRITE, member)

    def _lose_deaf(self) -> None:
        """Members that have not read their messages in time."""
        if not self._send_by:
            return
        now = time.monotonic()
        for member, link in list(self._links.items()):
            if self._send_by.get(link, now + 1.0) <= now:
                self._lose(member, f"it has not read its messages for {_SEND_SECONDS:g} s")

    def _forget(self, link: ProvedLink) -> None:
        self._send_by.pop(link, None)
        self._last.discard(link)
        self._selector.unregister(link.link)
        link.link.close()


def _listen(place: Place, secret: JobSecret | None, insecure: bool) -> socket.socket:
    try:
        found = look_up(place.host, place.port, socket.SOCK_STREAM)
    except OSError as error:
        raise ConfigError(
            f"the membership coordinator cannot listen at {place}: the name does not resolve ({cause_of(error)}); give "
            "an address of this host"
        ) from None
    last: OSError | None = None
    for family, _, _, _, address in found:
        secret_module.require(secret, insecure, str(address[0]), "the membership coordinator would listen at")
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(_BACKLOG)
        except OSError as error:
            listener.close()
            last = error
        else:
            return listener
    why = (
        "another process listens there: end it (`ss -lntp` lists it), or take another port"
        if last is not None and last.errno == errno.EADDRINUSE
        else f"{cause_of(last) if last is not None else 'no address'}: give an address of this host, or 0.0.0.0"
    )
    raise PortInUseError(f"the membership coordinator cannot listen at {place}: {why}")
