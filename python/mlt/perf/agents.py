"""The agents of a run: started, controlled, watched, and always ended.

``LocalAgents`` starts processes on this host. ``remote.RemoteAgents`` has the same interface for another host. Messages
and ends of all agents arrive as ``Event`` in one queue. No file is created: a killed run leaves nothing behind.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import queue
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from mlt._shared.link import Link, LinkClosedError, LinkError, Message
from mlt._shared.processes import Group, Process
from mlt.job.secret import own_secret
from mlt.perf.options import Options
from mlt.perf.problem import PROGRAM, BadOptionError
from mlt.perf.transports import Place, transport_class
from mlt.perf.transports.mpi import launch_command

# Agents end by themselves when their link closes.
LEAVE_SECONDS = 1.0
LOG_TAIL_LINES = 8
MPI, MPI_SHM = "mpi", "mpi-shm"


@dataclass(frozen=True)
class Event:
    """``message["kind"]``: an agent's reply, or ``ready``, ``error``, ``missing`` or ``died`` with a ``text``.

    ``transport``: the transport; empty for a whole host.
    """

    rank: int
    transport: str
    message: Message


Events = queue.SimpleQueue[Event]


class Agents(ABC):
    """The agents of some ranks."""

    ranks: tuple[int, ...]

    @abstractmethod
    def start(self, transport: str) -> None:
        """Start the agents of ``transport``: each replies ``ready``, or one ``missing``."""

    @abstractmethod
    def send(self, rank: int, transport: str, message: Message) -> None:
        """Send to one agent. An agent that has ended is reported as an event, not here."""

    @abstractmethod
    def close(self) -> None:
        """End every agent; may be called repeatedly."""


class LocalAgents(Agents):
    """Processes of this host, one per rank and transport, each in its own session: Ctrl-C reaches only the parent."""

    def __init__(self, places: Mapping[int, Place], options: Options, events: Events) -> None:
        self.ranks = tuple(places)
        self._places = dict(places)
        self._options = options
        self._events = events
        self._links: dict[tuple[int, str], Link] = {}
        self._readers: dict[tuple[int, str], threading.Thread] = {}
        self._group = Group()
        self._servers: list[socket.socket] = []
        self._closing = False
        # In Linux's abstract namespace, which belongs to the network namespace: mpirun's children find it by name.
        self._name = f"\0mlt-perf-{os.urandom(16).hex()}"
        cpus = sorted(os.sched_getaffinity(0))
        # Ranks of other hosts cannot know a secret made here: they use the one of the environment.
        whole = set(self.ranks) == set(range(options.ranks))
        self._secret = own_secret(os.environ) if whole else {}
        if options.pin and len(cpus) < len(places):
            raise BadOptionError(
                f"--pin: {len(places)} ranks need a core each, and this process may use {len(cpus)}; leave it out"
            )
        self._cpus = cpus if options.pin and len(places) > 1 else []

    def start(self, transport: str) -> None:
        missing = transport_class(transport).missing()
        whole = set(self.ranks) == set(range(self._options.ranks))
        if transport in (MPI, MPI_SHM) and not whole:  # whether installed or not
            missing = "mpirun starts its own ranks, so mlt perf runs it on one host only (--local)"
        if missing is not None:
            self._events.put(Event(self.ranks[0], transport, {"kind": "missing", "text": missing}))
            return
        server = socket.socket(socket.AF_UNIX)
        self._servers.append(server)
        server.bind(f"{self._name}-{transport}")
        server.listen(len(self.ranks))
        threading.Thread(target=self._accept, args=(server, transport), daemon=True).start()
        if transport in (MPI, MPI_SHM):
            agent = self._agent(transport, None)
            shared = transport == MPI_SHM
            command = launch_command(len(self.ranks), self._interface(), agent, shared_memory=shared)
            self._spawn(transport, self.ranks, command)
            return
        for rank in self.ranks:
            self._spawn(transport, (rank,), [sys.executable, *self._agent(transport, rank)])

    def _interface(self) -> str:
        return self._places[self.ranks[0]].interface

    def _agent(self, transport: str, rank: int | None) -> list[str]:
        job = {
            "transport": transport,
            "rank": rank,
            "socket": f"{self._name}-{transport}",
            "cpus": self._cpus,
            "place": asdict(self._places[self.ranks[0] if rank is None else rank]),
            "options": self._options.as_dict(),
        }
        return ["-m", "mlt.perf.agent", json.dumps(job)]

    def _spawn(self, transport: str, ranks: tuple[int, ...], command: list[str]) -> None:
        start = functools.partial(subprocess.Popen, command, env={**os.environ, **self._secret, "OMP_NUM_THREADS": "1"})
        name = f"{transport}'s process of rank {', '.join(map(str, ranks))}"
        process = self._group.start(name, start, tempfile.TemporaryFile())  # noqa: SIM115  # the group closes it
        threading.Thread(target=self._watch, args=(transport, ranks[0], process), daemon=True).start()

    def _accept(self, server: socket.socket, transport: str) -> None:
        left = set(self.ranks)
        while left:
            try:
                connection, _ = server.accept()
                if _user_of(connection) != os.geteuid():  # every process can connect to the name
                    connection.close()
                    continue
            except OSError:  # the listener was closed
                return
            link = Link(connection, PROGRAM)
            try:
                hello = link.receive()
            except LinkError:
                continue
            rank = int(hello["rank"])
            left.discard(rank)
            self._links[rank, transport] = link
            reader = threading.Thread(target=self._read, args=(rank, transport, link), daemon=True)
            self._readers[rank, transport] = reader
            reader.start()

    def _read(self, rank: int, transport: str, link: Link) -> None:
        with contextlib.suppress(LinkError):
            while True:
                self._events.put(Event(rank, transport, link.receive()))

    def _watch(self, transport: str, rank: int, process: Process) -> None:
        code = process.popen.wait()
        if self._closing or code == 0:
            return
        # The reason is in the agent's last message, which its reader may not have delivered yet.
        if reader := self._readers.get((rank, transport)):
            reader.join(LEAVE_SECONDS)
        text = f"{process.name} {process.ending()}{process.tail(LOG_TAIL_LINES)}"
        self._events.put(Event(rank, transport, {"kind": "died", "text": text, "signal": code < 0}))

    def send(self, rank: int, transport: str, message: Message) -> None:
        link = self._links.get((rank, transport))
        if link is not None:
            with contextlib.suppress(LinkClosedError):
                link.send(message)

    def close(self) -> None:
        self._closing = True
        for server in self._servers:
            with contextlib.suppress(OSError):
                server.shutdown(socket.SHUT_RDWR)  # wakes the accepting thread
            server.close()
        for link in list(self._links.values()):
            link.close()
        self._group.end(patience=LEAVE_SECONDS)


def _user_of(connection: socket.socket) -> int:
    credentials = struct.Struct("3i")  # process, user, group
    told = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, credentials.size)
    return int(credentials.unpack(told)[1])
