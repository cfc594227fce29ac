"""Rank 0's side of a job's start: ranks come, strangers are told why they do not belong, and nobody holds up another.

One thread. A caller has ``CALLER_SECONDS`` to say who it is and ``MAX_CALLERS`` places, where the newest
take those of the oldest; a rank that goes away again may come again.
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

from mlt._shared.link import GoneError, Link, Message, StrangerError
from mlt.job.address import resolve_master
from mlt.job.configuration import JobConfig
from mlt.perf.local_address import listen, where
from mlt.perf.problem import PROGRAM, PerfError
from mlt.perf.remote import CALLER_SECONDS, MAX_HELLO_BYTES, Host, check_hello, read_host, refuse

# That have not said who they are.
MAX_CALLERS = 64
SHOWN_REFUSALS = 3
Say = Callable[[str], None]


@dataclass
class _Caller:
    link: Link
    name: str
    expires: float
    host: Host | None = None


class Gathering:
    """A context manager; ``links`` and ``hosts`` are those of the ranks that came, this one's host among them.

    What is not a rank of this job is refused and reported with ``say``; so is a rank of another version of mlt, which
    may come again once that is mended.
    """

    def __init__(self, listeners: Sequence[socket.socket], own: Host, ranks: int, say: Say) -> None:
        self._own = own
        self._ranks = ranks
        self._say = say
        self._refused: deque[str] = deque(maxlen=SHOWN_REFUSALS)
        self._callers: dict[Link, _Caller] = {}
        self._listeners = list(listeners)
        self._selector = selectors.DefaultSelector()
        for listener in self._listeners:
            listener.setblocking(False)
            self._selector.register(listener, selectors.EVENT_READ)

    def __enter__(self) -> Gathering:
        return self

    def __exit__(self, *_: object) -> None:
        self._selector.close()
        for listener in self._listeners:
            listener.close()
        for caller in self._callers.values():
            if caller.host is None:
                caller.link.close()

    @property
    def links(self) -> dict[int, Link]:
        return {one.host.rank: one.link for one in self._callers.values() if one.host is not None}

    @property
    def hosts(self) -> dict[int, Host]:
        found = {one.host.rank: one.host for one in self._callers.values() if one.host is not None}
        return {self._own.rank: self._own, **found}

    def run(self, seconds: float) -> None:
        """Until every rank is there. Raises PerfError that names those that did not come."""
        deadline = time.monotonic() + seconds
        while len(self.hosts) < self._ranks:
            now = time.monotonic()
            if now >= deadline:
                raise PerfError(self._who_is_missing())
            silent = [one for one in self._callers.values() if one.host is None]
            for caller in silent:
                if caller.expires <= now:
                    self._refuse(caller, f"{caller.name} did not send its rank within {CALLER_SECONDS:g} s")
            until = min([deadline, *(one.expires for one in silent)])
            ready = [key for key, _ in self._selector.select(max(until - now, 0.0))]
            # Who has spoken first: a new caller may take the place of one that is silent.
            for key in ready:
                if isinstance(key.data, _Caller):
                    self._hear(key.data)
            for key in ready:
                if isinstance(key.fileobj, socket.socket):
                    self._accept(key.fileobj)

    def _who_is_missing(self) -> str:
        missing = ", ".join(str(rank) for rank in range(self._ranks) if rank not in self.hosts)
        refused = f"; rejected: {'; '.join(self._refused)}" if self._refused else ""
        return (
            f"rank 0: rank {missing} of {self._ranks} did not come; start mlt perf once per rank, with RANK, "
            f"WORLD_SIZE, MASTER_ADDR and MASTER_PORT{refused}"
        )

    def _accept(self, listener: socket.socket) -> None:
        try:
            connection, _ = listener.accept()
            link = Link(connection, PROGRAM)
            link.watch_network()
            caller = _Caller(link, f"the caller from {link.peer_host}", time.monotonic() + CALLER_SECONDS)
        except OSError:  # gone already
            return
        silent = [one for one in self._callers.values() if one.host is None]
        if len(silent) >= MAX_CALLERS:
            # The oldest: a rank says who it is at once, and comes again if this was one.
            self._forget(silent[0])
            silent[0].link.close()
        self._callers[link] = caller
        self._selector.register(link, selectors.EVENT_READ, caller)

    def _hear(self, caller: _Caller) -> None:
        try:
            message = caller.link.receive_ready(limit=MAX_HELLO_BYTES)
            if message is not None:
                self._admit(caller, message)
        except GoneError:
            self._forget(caller)
            caller.link.close()
        except (PerfError, StrangerError) as error:
            self._refuse(caller, f"{caller.name}: {error}")

    def _admit(self, caller: _Caller, message: Message) -> None:
        check_hello(message, caller.name)
        host = read_host(message, caller.name)
        if caller.host is not None:
            raise PerfError("it sent its rank twice")
        if not 0 < host.rank < self._ranks or host.rank in self.hosts:
            raise PerfError(f"rank {host.rank} is not expected: there are {self._ranks}, and each comes once")
        caller.host = host

    def _refuse(self, caller: _Caller, why: str) -> None:
        self._refused.append(why)
        self._say(f"mlt perf: rejected: {why}")
        self._forget(caller)
        refuse(caller.link, why)

    def _forget(self, caller: _Caller) -> None:
        del self._callers[caller.link]
        self._selector.unregister(caller.link)


def listeners(config: JobConfig, own: str, port: int) -> list[socket.socket]:
    """Where ranks may come: at what MASTER_ADDR means here, and at ``own``, since a machine's name may mean loopback to
    itself. Raises PerfError."""
    found: list[socket.socket] = []
    addresses = [str(one[4][0]) for one in resolve_master(config, socket.SOCK_STREAM)]
    try:
        for address in dict.fromkeys([*addresses, own]):
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
