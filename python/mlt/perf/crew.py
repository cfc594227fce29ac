"""The agents of a run: started, talked to, watched, and always ended.

``LocalCrew`` starts processes of this machine. ``remote.RemoteCrew`` is the same to its user, for another machine's.
What agents say, and their ends, come as ``Event`` through one queue, whichever crew they belong to. Nothing has a name
in the file system: a run that is killed leaves nothing behind.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import IO

from mlt.job.secret import own_secret
from mlt.perf.link import Link, Message
from mlt.perf.options import Options
from mlt.perf.peers import Place, peer_class
from mlt.perf.peers.mpi import launch_command
from mlt.perf.problem import PerfError

END_SECONDS = 3.0
LOG_TAIL_LINES, LOG_TAIL_BYTES = 8, 4_096
MPI, MPI_SHM = "mpi", "mpi-shm"


@dataclass(frozen=True)
class Event:
    """``message["kind"]``: what an agent answered, or ``ready``, ``error``, ``missing`` or ``died`` with a ``text``.

    ``peer`` is empty where a whole machine is meant.
    """

    rank: int
    peer: str
    message: Message


Events = queue.SimpleQueue[Event]


class Crew(ABC):
    """The agents of some ranks."""

    ranks: tuple[int, ...]

    @abstractmethod
    def start(self, peer: str) -> None:
        """Start the agents of ``peer``: each says ``ready``, or one ``missing``."""

    @abstractmethod
    def send(self, rank: int, peer: str, message: Message) -> None:
        """Tell one agent. An agent that is gone is reported as an event, not here."""

    @abstractmethod
    def close(self) -> None:
        """End every agent; harmless when repeated."""


class LocalCrew(Crew):
    """Processes of this machine, one per rank and transport, each in a session of its own: Ctrl-C is the parent's."""

    def __init__(self, places: Mapping[int, Place], options: Options, events: Events) -> None:
        self.ranks = tuple(places)
        self._places = dict(places)
        self._options = options
        self._events = events
        self._links: dict[tuple[int, str], Link] = {}
        self._processes: list[tuple[str, tuple[int, ...], subprocess.Popen[bytes]]] = []
        self._servers: list[socket.socket] = []
        self._closing = False
        # In Linux's abstract name space, which belongs to the network name space: mpirun's children find it by name.
        self._name = f"\0mlt-perf-{os.urandom(16).hex()}"
        self._logs: dict[tuple[str, int], IO[bytes]] = {}
        cpus = sorted(os.sched_getaffinity(0))
        # Ranks of other machines could not know a secret made here: theirs is the one of the environment.
        whole = set(self.ranks) == set(range(options.ranks))
        self._secret = own_secret(os.environ) if whole else {}
        self._cpus = cpus if options.pin and len(cpus) >= len(places) > 1 else []

    def start(self, peer: str) -> None:
        missing = peer_class(peer).missing()
        whole = set(self.ranks) == set(range(self._options.ranks))
        if peer in (MPI, MPI_SHM) and not whole:  # whether it is installed or not
            missing = "mpirun starts its ranks itself, which mlt perf asks of it on one machine only (--local)"
        if missing is not None:
            self._events.put(Event(self.ranks[0], peer, {"kind": "missing", "text": missing}))
            return
        server = socket.socket(socket.AF_UNIX)
        self._servers.append(server)
        server.bind(f"{self._name}-{peer}")
        server.listen(len(self.ranks))
        threading.Thread(target=self._accept, args=(server, peer), daemon=True).start()
        if peer in (MPI, MPI_SHM):
            agent = self._agent(peer, None)
            shared = peer == MPI_SHM
            command = launch_command(len(self.ranks), self._interface(), agent, shared_memory=shared)
            self._spawn(peer, self.ranks, command)
            return
        for rank in self.ranks:
            self._spawn(peer, (rank,), [sys.executable, *self._agent(peer, rank)])

    def _interface(self) -> str:
        return self._places[self.ranks[0]].interface

    def _agent(self, peer: str, rank: int | None) -> list[str]:
        job = {
            "peer": peer,
            "rank": rank,
            "socket": f"{self._name}-{peer}",
            "cpus": self._cpus,
            "place": asdict(self._places[self.ranks[0] if rank is None else rank]),
            "options": self._options.as_dict(),
        }
        return ["-m", "mlt.perf.agent", json.dumps(job)]

    def _spawn(self, peer: str, ranks: tuple[int, ...], command: list[str]) -> None:
        log = self._logs[peer, ranks[0]] = tempfile.TemporaryFile()  # noqa: SIM115
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, **self._secret, "OMP_NUM_THREADS": "1"},
            start_new_session=True,
        )
        self._processes.append((peer, ranks, process))
        threading.Thread(target=self._watch, args=(peer, ranks, process), daemon=True).start()

    def _accept(self, server: socket.socket, peer: str) -> None:
        left = set(self.ranks)
        while left:
            try:
                connection, _ = server.accept()
                if _user_of(connection) != os.geteuid():  # the name can be read by everybody
                    connection.close()
                    continue
                link = Link(connection)
                hello = link.receive()
            except OSError:  # closing
                return
            if hello is None:
                continue
            rank = int(hello["rank"])
            left.discard(rank)
            self._links[rank, peer] = link
            threading.Thread(target=self._read, args=(rank, peer, link), daemon=True).start()

    def _read(self, rank: int, peer: str, link: Link) -> None:
        with contextlib.suppress(PerfError):
            while (message := link.receive()) is not None:
                self._events.put(Event(rank, peer, message))

    def _watch(self, peer: str, ranks: tuple[int, ...], process: subprocess.Popen[bytes]) -> None:
        code = process.wait()
        if self._closing or code == 0:
            return
        text = f"{peer}'s process of rank {', '.join(map(str, ranks))} {_describe(code)}{self._tail(peer, ranks)}"
        self._events.put(Event(ranks[0], peer, {"kind": "died", "text": text, "signal": code < 0}))

    def _tail(self, peer: str, ranks: Sequence[int]) -> str:
        with contextlib.suppress(OSError, ValueError):  # closed meanwhile
            log = self._logs[peer, ranks[0]].fileno()
            # The position in the file is the process's, too.
            text = os.pread(log, LOG_TAIL_BYTES, max(os.fstat(log).st_size - LOG_TAIL_BYTES, 0))
            lines = text.decode(errors="replace").strip().splitlines()[-LOG_TAIL_LINES:]
            return "".join(f"\n  | {line}" for line in lines)
        return ""

    def send(self, rank: int, peer: str, message: Message) -> None:
        link = self._links.get((rank, peer))
        if link is not None:
            with contextlib.suppress(OSError):
                link.send(message)

    @property
    def pids(self) -> dict[tuple[int, str], int]:
        """Process by its first rank and transport."""
        return {(ranks[0], peer): process.pid for peer, ranks, process in self._processes}

    def close(self) -> None:
        self._closing = True
        for server in self._servers:
            with contextlib.suppress(OSError):
                server.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
            server.close()
        for link in list(self._links.values()):
            link.close()
        running = [process for _, _, process in self._processes]
        for number, seconds in ((None, END_SECONDS / 3), (signal.SIGTERM, END_SECONDS), (signal.SIGKILL, END_SECONDS)):
            running = [process for process in running if process.poll() is None]
            for process in running:
                with contextlib.suppress(ProcessLookupError):
                    if number is not None:
                        os.killpg(process.pid, number)
            deadline = time.monotonic() + seconds
            for process in running:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.0, deadline - time.monotonic()))
        for log in self._logs.values():
            log.close()


def _user_of(connection: socket.socket) -> int:
    credentials = struct.Struct("3i")  # process, user, group
    told = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, credentials.size)
    return int(credentials.unpack(told)[1])


def _describe(code: int) -> str:
    if code < 0:
        with contextlib.suppress(ValueError):
            return f"was killed by {signal.Signals(-code).name}"
    return f"ended with exit status {code}"
