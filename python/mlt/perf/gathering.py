"""Rank 0's side of a job's start: ranks connect through a ``HandshakeServer``, where they prove the job's secret.

One thread, which never waits for a client: one that does not prove itself, or does not read, delays no other. A rank
that disconnects may connect again.
"""

from __future__ import annotations

import errno
import selectors
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from mlt._shared.json_lines import quoted
from mlt._shared.link import Link, LinkClosedError, LinkError
from mlt._shared.patience import Patience
from mlt.job import secret as secret_module
from mlt.job.address import resolve_master
from mlt.job.configuration import JobConfig
from mlt.job.handshake_server import Caller, HandshakeServer
from mlt.job.rendezvous import ranks_text
from mlt.job.secret import JobSecret, Prover
from mlt.perf.local_address import listen, where
from mlt.perf.options import MAX_ERROR
from mlt.perf.problem import PROGRAM, PerfError
from mlt.perf.remote import MAX_HELLO_BYTES, PROTOCOL, SERVICE, Host, read_hello, read_host, refuse

SHOWN_REFUSALS = 3
# Max lines about rejected clients of one start, and seconds between two reports of their number.
MAX_REPORTS, REPORT_SECONDS = 50, 10.0
Say = Callable[[str], None]


@dataclass(frozen=True, eq=False)
class Member:
    """A rank that connected."""

    link: Link
    prover: Prover
    host: Host
    name: str


class Gathering:
    """A context manager; ``members`` are the ranks that connected, ``hosts`` theirs and this one's.

    A client that is not a rank of this job is rejected, counted and reported with ``say``; so is a rank of another
    version of mlt, which may connect again once that is fixed.
    """

    def __init__(
        self, listeners: Sequence[socket.socket], own: Host, ranks: int, secret: JobSecret | None, say: Say
    ) -> None:
        self._own = own
        self._ranks = ranks
        self._say = say
        self._refused: deque[str] = deque(maxlen=SHOWN_REFUSALS)
        self._reports = 0
        self._reported = ""
        self._report_at = 0.0
        self.members: dict[int, Member] = {}
        self._listeners = list(listeners)
        self._handshakes = HandshakeServer(
            SERVICE, PROTOCOL, secret, listeners=listeners, expected=ranks, report=self._rejected
        )
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._handshakes, selectors.EVENT_READ)

    def __enter__(self) -> Gathering:
        return self

    def __exit__(self, *_: object) -> None:
        self._selector.close()
        self._handshakes.close()
        for listener in self._listeners:
            listener.close()

    @property
    def hosts(self) -> dict[int, Host]:
        return {self._own.rank: self._own, **{rank: one.host for rank, one in self.members.items()}}

    def run(self, seconds: float) -> None:
        """Wait until every rank has connected. Raises PerfError that names the missing ones."""
        deadline, patience = time.monotonic() + seconds, Patience(changes=True)
        while len(self.hosts) < self._ranks:
            left = deadline - time.monotonic()
            if left <= 0:
                raise PerfError(self._who_is_missing())
            patience.ask(lambda: self._waiting_text(seconds))
            for key, _ in self._selector.select(min(left, self._handshakes.seconds_left(), patience.left)):
                if isinstance(key.data, Member):
                    self._hear(key.data)
            for caller in self._handshakes.turn():
                self._admit(caller)
            self._report()

    @property
    def _missing(self) -> str:
        return f"{ranks_text([one for one in range(self._ranks) if one not in self.hosts])} of {self._ranks}"

    def _waiting_text(self, seconds: float) -> str:
        at = " and ".join(where(*one.getsockname()[:2]) for one in self._listeners)
        return (
            f"rank 0: still waiting at {at} for mlt perf of {self._missing} (times out {seconds:g} s after its start)"
        )

    def _who_is_missing(self) -> str:
        refused = f"; rejected: {'; '.join(self._refused)}" if self._refused else ""
        counted = f"; connections rejected: {rejected}" if (rejected := self._handshakes.rejected_text()) else ""
        return (
            f"rank 0: {self._missing} did not connect; start mlt perf once per rank, with RANK, "
            f"WORLD_SIZE, MASTER_ADDR and MASTER_PORT{refused}{counted}"
        )

    def _report(self) -> None:
        now = time.monotonic()
        if now >= self._report_at and self._reported != (rejected := self._handshakes.rejected_text()):
            self._reported, self._report_at = rejected, now + REPORT_SECONDS
            self._say(f"mlt perf: connections rejected so far: {rejected}")

    def _rejected(self, why: str) -> None:
        why = quoted(why, MAX_ERROR)
        self._refused.append(why)
        self._reports += 1
        if self._reports <= MAX_REPORTS:
            more = "; further ones are only counted" if self._reports == MAX_REPORTS else ""
            self._say(f"mlt perf: rejected: {why}{more}")

    def _admit(self, caller: Caller) -> None:
        name = f"the client at {caller.address}"
        try:
            link = Link(caller.connection, PROGRAM, caller.received)
            link.watch_network()
        except OSError:  # already disconnected
            caller.connection.close()
            return
        try:
            host = read_host(read_hello(caller.content, name), name)
            if not 0 < host.rank < self._ranks or host.rank in self.hosts:
                raise PerfError(
                    f"rank {host.rank} is not expected: ranks 1 to {self._ranks - 1} connect once each (set RANK)"
                )
            if caller.received:
                raise PerfError("it sent its rank twice")
        except (PerfError, LinkError) as error:
            self._refuse(link, caller.prover, f"{name}: {error}")
            return
        member = Member(link, caller.prover, host, name)
        self.members[host.rank] = member
        self._selector.register(link, selectors.EVENT_READ, member)

    def _hear(self, member: Member) -> None:
        """Read from a rank before the start: it sends nothing until it disconnects."""
        try:
            if member.link.receive_ready(limit=MAX_HELLO_BYTES) is None:
                return
            why = "it sent its rank twice"
        except LinkClosedError:
            why = ""
        except LinkError as error:
            why = str(error)
        del self.members[member.host.rank]
        self._selector.unregister(member.link)
        if why:
            self._refuse(member.link, member.prover, f"{member.name}: {why}")
        else:
            member.link.close()

    def _refuse(self, link: Link, prover: Prover, why: str) -> None:
        self._handshakes.count("refusals")
        self._rejected(why)
        refuse(link, prover, why)


def listeners(config: JobConfig, own: str, port: int) -> list[socket.socket]:
    """Listeners for the ranks: at the address of MASTER_ADDR here, and at ``own``, since a host's name may resolve to
    loopback on itself. Raises PerfError."""
    found: list[socket.socket] = []
    addresses = [str(one[4][0]) for one in resolve_master(config, socket.SOCK_STREAM)]
    try:
        for address in dict.fromkeys([*addresses, own]):
            secret_module.require(config.secret, config.insecure, address, "rank 0 would listen at")
            with suppress(_NotOurs):
                found.append(_listen_at(address, port))
    except BaseException:
        for one in found:
            one.close()
        raise
    if not found:
        raise PerfError(
            f"rank 0: {where(config.master_addr, port)} is not an address of this host; MASTER_ADDR names rank 0's"
        )
    return found


class _NotOurs(Exception):
    pass


def _listen_at(address: str, port: int) -> socket.socket:
    try:
        return listen(address, port)
    except PerfError as error:
        cause = error.__cause__
        if isinstance(cause, OSError) and cause.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
            raise _NotOurs from error
        raise
