"""The door of a listening port: callers prove that they know the secret before anything they say is read, and those
who do not speak hold nobody up.

    caller   {"mlt_rendezvous": 3, "nonce": ...}                    an opening, under the name of what it looks for
    host     {"mlt_rendezvous": 3, "nonce": ..., "proof": ...}      its own, with the proof that it knows the secret
    caller   {"content": "...", "proof": ...}                       the first thing it has to say

One line of JSON each. A caller that has not proved itself is told nothing else, is cut by time and by number (the
source address with most callers loses its oldest), and is counted by name. Single-threaded, without a blocking read.
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
# Callers without a proof at a time, for every small job: what a flood can count tells nothing of the job's size.
MIN_MAX_CALLERS = 256
# Of a larger job, beyond those that are expected, before rounding up to a power of two.
SPARE_CALLERS = 64
# How long a caller may take for its proof.
PROOF_SECONDS = 5.0
# Callers accepted before those that are here are read again.
ACCEPTS_PER_TURN = 16

# accept() failed for want of these: closing a caller frees one.
OUT_OF_DESCRIPTORS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

# What is counted, with the door's name in front: "rendezvous_accepted".
COUNTERS = (
    "accepted",
    "strangers",  # left before a valid opening
    "unproved",  # a wrong proof, or none before it left
    "malformed",  # a line that is no message
    "oversized",  # a line longer than MAX_LINE_BYTES
    "other_version",
    "timed_out",  # no proof within PROOF_SECONDS
    "too_many_pending",  # cut for a newer one
    "refusals",  # proved, and turned away by whoever owns the door
)


def max_callers(expected: int) -> int:
    """Callers without a proof that a door for ``expected`` ones holds: the same number for jobs of similar size."""
    return max(MIN_MAX_CALLERS, 1 << (expected + SPARE_CALLERS - 1).bit_length())


def source_of(address: str) -> str | bytes:
    """What callers of one host share: its IPv4 address, or the /64 of its IPv6 address, in which it can take any."""
    if ":" not in address:
        return address
    packed = socket.inet_pton(socket.AF_INET6, address.partition("%")[0])
    return packed if packed.startswith(bytes(10) + b"\xff\xff") else packed[:8]


class Caller:
    """One connection: its socket, what was read of it and not used, and, once it has proved itself, what it said."""

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
        """A few bytes into an empty socket buffer: this does not block, and a caller that is gone does not matter."""
        with contextlib.suppress(OSError):
            self.connection.send(line_of(message))


class Door:
    """``listeners`` and their callers, up to ``max_callers(expected)`` without a proof. ``fileno`` is for a selector;
    ``counts`` gets what ``COUNTERS`` names. Without ``proof`` a caller is the owner's once its first line is whole,
    which then is its content. The owner closes the listeners.
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
        self._callers: dict[int, Caller] = {}  # the oldest first
        self._sources: Counter[str | bytes] = Counter()  # callers by source; none that has no caller
        self._selector = selectors.EpollSelector()
        self.counts: Counter[str] = Counter() if counts is None else counts
        self.counts.update({f"{name}_{one}": 0 for one in COUNTERS})
        for listener in listeners:
            self.add(listener)

    def add(self, listener: socket.socket) -> None:
        """Let callers in through ``listener`` too."""
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ)

    def fileno(self) -> int:
        """Readable when ``turn`` has something to do."""
        return self._selector.fileno()

    def close(self) -> None:
        """End every caller that has not proved itself."""
        for caller in self._callers.values():
            caller.connection.close()
        self._callers.clear()
        self._sources.clear()
        self._selector.close()

    def count(self, what: str) -> None:
        """Add one to the counter ``what``."""
        self.counts[f"{self._name}_{what}"] += 1

    def turned_away(self) -> str:
        """How many callers were turned away, and why; empty if none were."""
        reasons = {one: self.counts[f"{self._name}_{one}"] for one in COUNTERS if one != "accepted"}
        return ", ".join(f"{number} {one.replace('_', ' ')}" for one, number in reasons.items() if number)

    def seconds_left(self) -> float:
        """Until ``turn`` has to be called though nothing is readable."""
        deadlines = [caller.deadline for caller in self._callers.values()]
        return max(min(deadlines, default=time.monotonic() + PROOF_SECONDS) - time.monotonic(), 0.0)

    def wait(self, seconds: float | None) -> list[Caller]:
        """Those that proved themselves, once there is one, or ``seconds`` have passed."""
        deadline = None if seconds is None else time.monotonic() + seconds
        while True:
            left = None if deadline is None else max(deadline - time.monotonic(), 0.0)
            guests = self.turn(self.seconds_left() if left is None else min(left, self.seconds_left()))
            if guests or left == 0.0:
                return guests

    def turn(self, seconds: float = 0.0) -> list[Caller]:
        """What is readable within ``seconds``; those that proved themselves, which are the owner's from now on."""
        guests: list[Caller] = []
        for key, _ in self._selector.select(seconds):
            if key.data is None:
                self._accept(cast(socket.socket, key.fileobj))
            elif self._callers.get(key.fd) is key.data:  # not dropped in this turn
                self._read(key.data, guests)
        now = time.monotonic()
        for caller in [one for one in self._callers.values() if one.deadline <= now]:
            self._turn_away(caller, "timed_out")
        return guests

    def _accept(self, listener: socket.socket) -> None:
        for turn in range(ACCEPTS_PER_TURN):
            try:
                connection, address = listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno not in OUT_OF_DESCRIPTORS:  # that caller is gone already
                    continue
                if turn > 0:  # perhaps nobody waits any more: accept() wants a descriptor first
                    return
                if self._callers:
                    self._turn_away(self._most_dispensable(), "too_many_pending")
                else:
                    time.sleep(0.01)
                return
            self.count("accepted")
            connection.setblocking(False)
            caller = Caller(connection, str(address[0]), Prover(self._secret, self._name, role="host"))
            self._sources[caller.source] += 1
            if len(self._callers) >= self._max_callers:
                self._turn_away(self._most_dispensable(), "too_many_pending")
            self._callers[connection.fileno()] = caller
            self._selector.register(connection, selectors.EVENT_READ, caller)

    def _most_dispensable(self) -> Caller:
        """Of the source that holds most callers, the oldest that has not opened, or the oldest: a flood from one
        address closes its own."""
        # One that is being accepted is counted for its source, but is not in _callers: it makes nobody else's place.
        most = max(self._sources[one.source] for one in self._callers.values())
        held = [one for one in self._callers.values() if self._sources[one.source] == most]
        return next((one for one in held if not one.opened), held[0])

    def _forget(self, caller: Caller) -> None:
        del self._callers[caller.connection.fileno()]
        self._sources[caller.source] -= 1
        if not self._sources[caller.source]:
            del self._sources[caller.source]
        self._selector.unregister(caller.connection)

    def _turn_away(self, caller: Caller, counter: str) -> None:
        """End a caller that proved nothing, without a word."""
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
            self._turn_away(caller, "unproved" if caller.opened else "strangers")
            return
        caller.received += piece
        if len(caller.received) > MAX_LINE_BYTES:
            self._turn_away(caller, "oversized")
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
            self._turn_away(caller, "malformed")

    def _on_opening(self, caller: Caller, line: bytes) -> None:
        opening = object_of(line)
        key = f"mlt_{self._name}"
        version = opening.get(key)
        if type(version) is not int:
            # A caller of another service of mlt hears which one this is.
            if key not in opening and any(one.startswith("mlt_") for one in opening):
                caller.say({key: self._version})
            self._turn_away(caller, "malformed")
        elif version != self._version:
            text = f"{self._name} version {self._version} is spoken here, not {quoted(version)}"
            self._report(f"{text} [{caller.address}]")
            answer = {"error": "peer_mismatch", "text": f"{text}: install the same mlt release on all machines"}
            caller.say({key: self._version, **answer})
            self._turn_away(caller, "other_version")
        elif not caller.prover.meet(str(opening.get("nonce"))):
            self._turn_away(caller, "malformed")
        else:
            caller.opened = True
            caller.say({key: self._version, "nonce": caller.prover.nonce, "proof": caller.prover.prove()})

    def _on_content(self, caller: Caller, line: bytes, guests: list[Caller]) -> None:
        said = object_of(line)
        content = said.get("content")
        if not isinstance(content, str):
            raise ValueError("no content")
        if not caller.prover.check(said.get("proof"), content):
            self._turn_away(caller, "unproved")
            return
        caller.content = content
        self._forget(caller)
        guests.append(caller)
