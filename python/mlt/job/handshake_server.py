"""Admits clients of a listening port: they prove the secret before anything else they send is read, and silent ones
delay no other client.

    caller   {"mlt_rendezvous": 3, "nonce": ...}                    an opening, with the service's name as key
    host     {"mlt_rendezvous": 3, "nonce": ..., "proof": ...}      its own, with its proof of the secret
    caller   {"content": "...", "proof": ...}                       the client's first content

One line of JSON each. A client without a proof receives nothing else, is limited by time and number (the source address
with most clients loses its oldest), and is counted. Single-threaded, without a blocking read.
"""

from __future__ import annotations

import contextlib
import errno
import selectors
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, cast

from mlt._shared.json_lines import line_of, object_of, quoted
from mlt.job.secret import JobSecret, Prover

MAX_LINE_BYTES = 8_192
# Max clients without a proof, the same for every small job: a flood cannot reveal the job's size.
MIN_MAX_CALLERS = 256
# For a larger job: beyond those expected, before rounding up to a power of two.
SPARE_CALLERS = 64
# Time limit for a client's proof.
PROOF_SECONDS = 5.0
# Clients accepted before those present are read again.
ACCEPTS_PER_TURN = 16

# accept() failed because these are exhausted: closing a client frees one.
OUT_OF_DESCRIPTORS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

# Counters, prefixed with the server's name: "rendezvous_accepted".
COUNTERS = (
    "accepted",
    "unidentified",  # left before a valid opening
    "unproved",  # a wrong proof, or none before it left
    "malformed",  # a line that is not a message
    "oversized",  # a line longer than MAX_LINE_BYTES
    "other_version",
    "timed_out",  # no proof within PROOF_SECONDS
    "too_many_pending",  # closed in favour of a newer one
    "refusals",  # proved, and rejected by the owner
)


def max_callers(expected: int) -> int:
    """Max clients without a proof of a server that expects ``expected`` clients; the same for jobs of similar size."""
    return max(MIN_MAX_CALLERS, 1 << (expected + SPARE_CALLERS - 1).bit_length())


def source_of(address: str) -> str | bytes:
    """Key that clients of one host share: its IPv4 address, or its IPv6 /64, within which it can use any address."""
    if ":" not in address:
        return address
    packed = socket.inet_pton(socket.AF_INET6, address.partition("%")[0])
    return packed if packed.startswith(bytes(10) + b"\xff\xff") else packed[:8]


class Caller:
    """One connection: its socket, bytes read but not used, and, once it has proved itself, its first content."""

    def __init__(self, connection: socket.socket, address: str, prover: Prover) -> None:
        self.connection = connection
        self.address = address
        self.source = source_of(address)
        self.prover = prover
        self.received = b""
        self.content = ""
        self.opened = False
        self.deadline = time.monotonic() + PROOF_SECONDS

    def say(self, message: dict[str, Any]) -> None:
        """Send a few bytes. Into an empty socket buffer: does not block; a disconnected client is ignored."""
        with contextlib.suppress(OSError):
            self.connection.send(line_of(message))


class HandshakeServer:
    """``listeners`` and their clients, up to ``max_callers(expected)`` without a proof. ``fileno`` is for a selector;
    ``counts`` gets the counters in ``COUNTERS``. Without ``proof`` a client passes to the owner with its first complete
    line, which is its content. The owner closes the listeners.
    """

    def __init__(
        self,
        name: str,
        version: int,
        secret: JobSecret | None,
        *,
        proof: bool = True,
        listeners: Iterable[socket.socket] = (),
        expected: int = 0,
        counts: Counter[str] | None = None,
        report: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._name = name
        self._version = version
        self._secret = secret
        self._proof = proof
        self._max_callers = max_callers(expected)
        self._report = report
        self._callers: dict[int, Caller] = {}  # oldest first
        self._sources: Counter[str | bytes] = Counter()  # clients by source; only sources with clients
        self._selector = selectors.EpollSelector()
        self.counts: Counter[str] = Counter() if counts is None else counts
        self.counts.update({f"{name}_{one}": 0 for one in COUNTERS})
        for listener in listeners:
            self.add(listener)

    def add(self, listener: socket.socket) -> None:
        """Accept clients of ``listener`` too."""
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ)

    def fileno(self) -> int:
        """Readable when ``turn`` has work to do."""
        return self._selector.fileno()

    def close(self) -> None:
        """Close every client that has not proved itself."""
        for caller in self._callers.values():
            caller.connection.close()
        self._callers.clear()
        self._sources.clear()
        self._selector.close()

    def count(self, what: str) -> None:
        """Increment the counter ``what``."""
        self.counts[f"{self._name}_{what}"] += 1

    def rejected_text(self) -> str:
        """Number of rejected clients, and why; empty if there were none."""
        reasons = {one: self.counts[f"{self._name}_{one}"] for one in COUNTERS if one != "accepted"}
        return ", ".join(f"{number} {one.replace('_', ' ')}" for one, number in reasons.items() if number)

    def seconds_left(self) -> float:
        """Seconds until ``turn`` must be called although nothing is readable."""
        deadlines = [caller.deadline for caller in self._callers.values()]
        return max(min(deadlines, default=time.monotonic() + PROOF_SECONDS) - time.monotonic(), 0.0)

    def wait(self, seconds: float | None) -> list[Caller]:
        """The clients that proved themselves, once there is one or ``seconds`` have passed."""
        deadline = None if seconds is None else time.monotonic() + seconds
        while True:
            left = None if deadline is None else max(deadline - time.monotonic(), 0.0)
            guests = self.turn(self.seconds_left() if left is None else min(left, self.seconds_left()))
            if guests or left == 0.0:
                return guests

    def turn(self, seconds: float = 0.0) -> list[Caller]:
        """Process what is readable within ``seconds``; returns clients that proved themselves, which the owner takes
        over."""
        guests: list[Caller] = []
        for key, _ in self._selector.select(seconds):
            if key.data is None:
                self._accept(cast(socket.socket, key.fileobj))
            elif self._callers.get(key.fd) is key.data:  # not dropped in this turn
                self._read(key.data, guests)
        now = time.monotonic()
        for caller in [one for one in self._callers.values() if one.deadline <= now]:
            self._reject(caller, "timed_out")
        return guests

    def _accept(self, listener: socket.socket) -> None:
        for turn in range(ACCEPTS_PER_TURN):
            try:
                connection, address = listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno not in OUT_OF_DESCRIPTORS:  # that client has already disconnected
                    continue
                if turn > 0:  # perhaps no client is pending: accept() needs a descriptor first
                    return
                if self._callers:
                    self._reject(self._client_to_evict(), "too_many_pending")
                else:
                    time.sleep(0.01)
                return
            self.count("accepted")
            connection.setblocking(False)
            caller = Caller(connection, str(address[0]), Prover(self._secret, self._name, role="host"))
            self._sources[caller.source] += 1
            if len(self._callers) >= self._max_callers:
                self._reject(self._client_to_evict(), "too_many_pending")
            self._callers[connection.fileno()] = caller
            self._selector.register(connection, selectors.EVENT_READ, caller)

    def _client_to_evict(self) -> Caller:
        """Client to close: of the source with most clients, the oldest without an opening, or the oldest: a flood from
        one address closes its own clients."""
        # The client being accepted counts for its source, but is not in _callers: it cannot be closed in its own
        # favour.
        maximum = max(self._sources[one.source] for one in self._callers.values())
        held = [one for one in self._callers.values() if self._sources[one.source] == maximum]
        return next((one for one in held if not one.opened), held[0])

    def _forget(self, caller: Caller) -> None:
        del self._callers[caller.connection.fileno()]
        self._sources[caller.source] -= 1
        if not self._sources[caller.source]:
            del self._sources[caller.source]
        self._selector.unregister(caller.connection)

    def _reject(self, caller: Caller, counter: str) -> None:
        """Close a client without a proof, without a reply."""
        self.count(counter)
        self._forget(caller)
        caller.connection.close()

    def _read(self, caller: Caller, guests: list[Caller]) -> None:
        try:
            piece = caller.connection.recv(MAX_LINE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            piece = b""
        if not piece:
            self._reject(caller, "unproved" if caller.opened else "unidentified")
            return
        caller.received += piece
        if len(caller.received) > MAX_LINE_BYTES:
            self._reject(caller, "oversized")
            return
        if b"\n" not in caller.received:
            return
        line, _, caller.received = caller.received.partition(b"\n")
        try:
            if not self._proof:
                caller.content = line.decode(errors="replace")
                self._forget(caller)
                guests.append(caller)
            elif caller.opened:
                self._on_content(caller, line, guests)
            else:
                self._on_opening(caller, line)
        except ValueError:
            self._reject(caller, "malformed")

    def _on_opening(self, caller: Caller, line: bytes) -> None:
        opening = object_of(line)
        key = f"mlt_{self._name}"
        version = opening.get(key)
        if type(version) is not int:
            # A client of another service of mlt receives this service's name.
            if key not in opening and any(one.startswith("mlt_") for one in opening):
                caller.say({key: self._version})
            self._reject(caller, "malformed")
        elif version != self._version:
            text = f"{self._name} version {self._version} is spoken here, not {quoted(version)}"
            self._report(f"{text} [{caller.address}]")
            answer = {"error": "peer_mismatch", "text": f"{text}: install the same mlt release on all machines"}
            caller.say({key: self._version, **answer})
            self._reject(caller, "other_version")
        elif not caller.prover.meet(str(opening.get("nonce"))):
            self._reject(caller, "malformed")
        else:
            caller.opened = True
            caller.say({key: self._version, "nonce": caller.prover.nonce, "proof": caller.prover.prove()})

    def _on_content(self, caller: Caller, line: bytes, guests: list[Caller]) -> None:
        said = object_of(line)
        content = said.get("content")
        if not isinstance(content, str):
            raise ValueError("no content")
        if not caller.prover.check(said.get("proof"), content):
            self._reject(caller, "unproved")
            return
        caller.content = content
        self._forget(caller)
        guests.append(caller)
