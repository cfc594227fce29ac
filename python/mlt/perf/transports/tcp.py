"""Plain TCP sockets: kernel TCP without a library on top of it.

One connection per pair of ranks, one thread that reads and writes whichever is ready. All-reduce is a ring of
reduce-scatter and all-gather. The congestion control is the host's default.
"""

from __future__ import annotations

import selectors
import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from mlt.perf.local_address import family_of, where
from mlt.perf.patterns import Buffers, Floats
from mlt.perf.problem import PerfError
from mlt.perf.transports.base import Address, Outcome, Transport

_ASK = b"ask."
_RETRY_SECONDS = 0.05
_RANK_BYTES = 2


class Tcp(Transport):
    """The mesh. Higher ranks connect to lower ones and send their rank."""

    def open(self, table: Sequence[Address]) -> None:
        self._connections: dict[int, socket.socket] = {}
        rank, deadline = self.place.rank, time.monotonic() + min(self.options.timeout, 60.0)
        own = table[rank]
        with socket.create_server((own.host, own.port), family=family_of(own.host), backlog=len(table)) as server:
            for peer in range(rank):
                connection = _call(table[peer], deadline, rank, peer)
                connection.sendall(rank.to_bytes(_RANK_BYTES, "big"))
                self._connections[peer] = connection
            while len(self._connections) < len(table) - 1:
                server.settimeout(max(deadline - time.monotonic(), 0.01))
                try:
                    connection = server.accept()[0]
                except TimeoutError:
                    raise PerfError(f"rank {rank}: tcp: not every rank connected in time") from None
                self._connections[_announced(connection, rank, len(table))] = connection
        for connection in self._connections.values():
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.setblocking(False)

    def incast(self, buffers: Buffers) -> Outcome:
        if self.place.rank:
            self._exchange({}, {0: memoryview(bytearray(len(_ASK)))})
            self._exchange({0: _bytes(buffers.outgoing)}, {})
            return Outcome(0.0)
        began = time.perf_counter()
        self._exchange(
            {peer: memoryview(_ASK) for peer in buffers.incoming},
            {peer: _bytes(array) for peer, array in buffers.incoming.items()},
        )
        return Outcome(time.perf_counter() - began)

    def alltoall(self, buffers: Buffers) -> Outcome:
        rank, ranks = self.place.rank, self.place.ranks
        began = time.perf_counter()
        out, into = np.split(buffers.outgoing, ranks), np.split(buffers.work, ranks)
        np.copyto(into[rank], out[rank])
        others = [peer for peer in range(ranks) if peer != rank]
        self._exchange({peer: _bytes(out[peer]) for peer in others}, {peer: _bytes(into[peer]) for peer in others})
        return Outcome(time.perf_counter() - began)

    def allreduce(self, buffers: Buffers) -> Outcome:
        rank, ranks = self.place.rank, self.place.ranks
        began = time.perf_counter()
        parts = np.array_split(buffers.work, ranks)
        scratch = np.empty_like(parts[0])
        after, before = (rank + 1) % ranks, (rank - 1) % ranks
        for step in range(ranks - 1):
            mine, theirs = parts[(rank - step) % ranks], parts[(rank - step - 1) % ranks]
            arrived = scratch[: theirs.size]
            self._exchange({after: _bytes(mine)}, {before: _bytes(arrived)})
            theirs += arrived
        for step in range(ranks - 1):
            mine, theirs = parts[(rank + 1 - step) % ranks], parts[(rank - step) % ranks]
            self._exchange({after: _bytes(mine)}, {before: _bytes(theirs)})
        return Outcome(time.perf_counter() - began)

    def close(self) -> None:
        for connection in getattr(self, "_connections", {}).values():
            connection.close()

    def _exchange(self, sends: Mapping[int, memoryview], receives: Mapping[int, memoryview]) -> None:
        """Send and receive all of these at once, whichever connection is ready first."""
        outgoing = {peer: view for peer, view in sends.items() if len(view)}
        incoming = {peer: view for peer, view in receives.items() if len(view)}
        with selectors.DefaultSelector() as selector:
            for peer in outgoing.keys() | incoming.keys():
                selector.register(self._connections[peer], _interest(peer, outgoing, incoming), peer)
            while outgoing or incoming:
                ready = selector.select(self.options.timeout)
                if not ready:
                    self._fail(min(outgoing.keys() | incoming.keys()), f"nothing for {self.options.timeout:g} s")
                for key, events in ready:
                    self._advance(key.data, events, outgoing, incoming)
                    interest = _interest(key.data, outgoing, incoming)
                    if interest == 0:
                        selector.unregister(key.fileobj)
                    elif interest != key.events:
                        selector.modify(key.fileobj, interest, key.data)

    def _advance(
        self, peer: int, events: int, outgoing: dict[int, memoryview], incoming: dict[int, memoryview]
    ) -> None:
        connection = self._connections[peer]
        try:
            if events & selectors.EVENT_READ:
                got = connection.recv_into(incoming[peer])
                if got == 0:
                    self._fail(peer, "it closed the connection")
                _consume(incoming, peer, got)
            if events & selectors.EVENT_WRITE:
                _consume(outgoing, peer, connection.send(outgoing[peer]))
        except BlockingIOError:
            pass
        except OSError as error:
            self._fail(peer, str(error.strerror or error))

    def _fail(self, peer: int, why: str) -> None:
        raise PerfError(f"rank {self.place.rank}: tcp: the connection with rank {peer} failed: {why}", peer=peer)


def _interest(peer: int, outgoing: Mapping[int, memoryview], incoming: Mapping[int, memoryview]) -> int:
    return (selectors.EVENT_WRITE if peer in outgoing else 0) | (selectors.EVENT_READ if peer in incoming else 0)


def _consume(views: dict[int, memoryview], peer: int, count: int) -> None:
    views[peer] = views[peer][count:]
    if not len(views[peer]):
        del views[peer]


def _bytes(array: Floats) -> memoryview:
    return array.view(np.uint8).data


def _call(address: Address, deadline: float, rank: int, peer: int) -> socket.socket:
    while True:
        try:
            return socket.create_connection(
                (address.host, address.port), timeout=max(deadline - time.monotonic(), 0.01)
            )
        except OSError as error:
            if time.monotonic() > deadline:
                raise PerfError(
                    f"rank {rank}: tcp: rank {peer} at {where(address.host, address.port)} cannot be reached: "
                    f"{error.strerror or error}",
                    peer=peer,
                ) from None
        time.sleep(_RETRY_SECONDS)


def _announced(connection: socket.socket, rank: int, ranks: int) -> int:
    connection.settimeout(10.0)
    text = connection.recv(_RANK_BYTES, socket.MSG_WAITALL)
    peer = int.from_bytes(text, "big")
    if len(text) != _RANK_BYTES or not rank < peer < ranks:
        raise PerfError(f"rank {rank}: tcp: an unknown program connected")
    return peer


def congestion_control() -> str:
    """The host's default congestion control, for the report."""
    try:
        return Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text(encoding="ascii").strip()
    except OSError:
        return "unknown"


TRANSPORT = Tcp
