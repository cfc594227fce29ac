"""The bare UDP_SEGMENT loop: the rate of kernel UDP without checking, ordering or pacing.

An upper limit, not a transport: lost data stays lost, and the report shows the fraction that arrived. Two ranks only. A
p2p round lasts from the first request to the last datagram that arrived; an all-reduce polls.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from collections.abc import Sequence

from mlt.perf import _bare_udp
from mlt.perf.local_address import family_of, usual_payload
from mlt.perf.patterns import Buffers
from mlt.perf.problem import PerfError
from mlt.perf.transports.base import Address, Outcome, Transport

_ASK = struct.Struct("!I")
_SILENCE_SECONDS = 0.05
_SILENCE_NS = round(_SILENCE_SECONDS * 1e9)
_TRIALS = 100


class RawUdp(Transport):
    """Two connected sockets; rank 0 sends the round's number until data arrives."""

    patterns = frozenset({"p2p", "allreduce"})
    max_ranks = 2
    is_reliable = False

    def open(self, table: Sequence[Address]) -> None:
        own, other = table[self.place.rank], table[1 - self.place.rank]
        self._round = 0
        self._has_met = False
        self._socket = socket.socket(family_of(own.host), socket.SOCK_DGRAM)
        self._socket.bind((own.host, own.port))
        self._socket.connect((other.host, other.port))
        _bare_udp.prepare(self._socket.fileno(), _SILENCE_NS)
        self._payload = self.options.segment_bytes or usual_payload(own.host, self.place.mtu)

    def incast(self, buffers: Buffers) -> Outcome:
        self._round += 1
        if self.place.rank:
            self._await_ask()
            _bare_udp.send(self._socket.fileno(), buffers.outgoing, self._payload)
            return Outcome(0.0)
        array = buffers.incoming[1]
        began = time.perf_counter()
        for _ in range(_TRIALS):
            # An error here is an earlier datagram's: the other side was not listening yet.
            with contextlib.suppress(ConnectionRefusedError):
                self._socket.send(_ASK.pack(self._round))
            before = time.perf_counter() - began
            waited_ns, elapsed_ns, arrived = _bare_udp.receive(self._socket.fileno(), array, self._payload)
            if arrived:
                return Outcome(before + (waited_ns + elapsed_ns) * 1e-9, 0, arrived)
        raise PerfError(f"rank 0: raw-udp: no datagram of rank 1 arrived in {_TRIALS * _SILENCE_SECONDS:g} s", peer=1)

    def _await_ask(self) -> None:
        for _ in range(round(self.options.timeout / _SILENCE_SECONDS)):
            with contextlib.suppress(BlockingIOError, ConnectionRefusedError):
                text = self._socket.recv(_ASK.size)
                if len(text) == _ASK.size and _ASK.unpack(text)[0] == self._round:
                    return
        raise PerfError(f"rank 1: raw-udp: no request of rank 0 arrived within {self.options.timeout:g} s", peer=0)

    def alltoall(self, buffers: Buffers) -> Outcome:
        raise NotImplementedError("raw-udp has no all-to-all")

    def allreduce(self, buffers: Buffers) -> Outcome:
        self._round += 1
        rank = self.place.rank
        # Once they have met, no rank waits longer than a silence: a round of which nothing arrives was lost.
        patience_ns = _SILENCE_NS if self._has_met else round(self.options.timeout * 1e9)
        began = time.perf_counter()
        arrived = _bare_udp.all_reduce(
            self._socket.fileno(), buffers.work, rank == 0, self._round, self._payload, patience_ns, _SILENCE_NS
        )
        self._has_met = self._has_met or arrived > 0
        if not self._has_met:
            raise PerfError(f"rank {rank}: raw-udp: no datagram arrived in {self.options.timeout:g} s", peer=1 - rank)
        return Outcome(time.perf_counter() - began, 0, arrived)

    def close(self) -> None:
        if hasattr(self, "_socket"):
            self._socket.close()


TRANSPORT = RawUdp
