"""``Member``: one process's connection to the membership coordinator of its job, kept by a thread of its own.

The thread connects again whenever the connection breaks: while an epoch runs, the coordinator may be away. Only
``ask`` and ``announce`` need it, and wait for it ``connect_seconds``.
"""

from __future__ import annotations

import contextlib
import logging
import os
import platform
import secrets
import socket
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal

from mlt._shared.json_lines import shown
from mlt._shared.link import Link, LinkError, Message
from mlt._shared.name_lookup import look_up
from mlt._shared.os_errors import cause_of
from mlt._shared.patience import Patience
from mlt.errors import ConfigError, MltError, PeerMismatchError, RendezvousError, from_code
from mlt.job import handshake_client
from mlt.job import secret as secret_module
from mlt.job.address import dial
from mlt.job.epochs.messages import NAME, VERSION, Announced, Hello, ProvedLink, checked, ids_of, number_of, text_of
from mlt.job.epochs.roster import FORM_SECONDS
from mlt.job.epochs.settings import Kind, Place
from mlt.job.secret import JobSecret

RETRY_SECONDS: Final = 0.5
HANDSHAKE_SECONDS: Final = 5.0
_CONNECT_SECONDS: Final = 5.0
_SEND_SECONDS: Final = 5.0
_MAX_OPENING_BYTES: Final = 2_048
_LOOK_SECONDS: Final = 1.0
_PING_SECONDS: Final = 5.0
_LEAVE_SECONDS: Final = 2.0

Phase = Literal["out", "asking", "forming", "running"]

logger = logging.getLogger("mlt")
_members: weakref.WeakSet[Member] = weakref.WeakSet()


class EpochOverError(MltError):
    """An epoch ended before it began: a member died or could not take part. Ask for the next one."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """This process's place in an epoch. ``workers``, ``services``: ids of the members in rank order."""

    number: int
    rank: int
    workers: tuple[str, ...]
    services: tuple[str, ...]


class Member:
    """Safe to use from any thread, one of which asks and announces. ``connect_seconds``: for the coordinator to be
    there."""

    def __init__(
        self,
        place: Place,
        kind: Kind,
        *,
        job: str,
        secret: JobSecret | None = None,
        insecure: bool = False,
        connect_seconds: float,
    ) -> None:
        self.id = secrets.token_hex(8)
        self.place = place
        self.kind = kind
        self._job = job
        self._secret = secret
        self._insecure = insecure
        self._connect_seconds = connect_seconds
        self._condition = threading.Condition()
        self._phase: Phase = "out"
        self._assigned: Assignment | None = None
        self._table: list[tuple[int, str, int]] | None = None
        self._due = ""
        self._knows_loss = False
        self._is_epoch_over = False
        self._on_loss: Callable[[], object] | None = None
        self._failure: MltError | None = None
        self._has_ended = False
        self._is_left = False
        self._age: int | None = None
        self._number = 0  # of the last epoch
        self._link: ProvedLink | None = None
        self._silence = 0.0  # seconds of waiting since the coordinator's last message
        self._ping_in = 0.0
        self._away_since = time.monotonic()
        self._cause = "no reply to TCP"
        self._was_connected = False
        self._pid = os.getpid()
        self._thread: threading.Thread | None = None
        _members.add(self)

    @property
    def due(self) -> str:
        """Why the running epoch is to end between two steps; empty if it is not."""
        with self._condition:
            return self._due

    @property
    def failure(self) -> MltError | None:
        """Why this process is no member any more; None if it is one."""
        with self._condition:
            return self._failure

    @property
    def is_epoch_over(self) -> bool:
        """Whether no worker is left in the running epoch, or this process is no member any more."""
        with self._condition:
            return self._is_epoch_over or self._failure is not None

    def ask(self) -> Assignment | None:
        """Leave the epoch, and wait for a place in the next; None for a service once every worker has left.

        Raises RendezvousError or PeerMismatchError: the coordinator refuses this process, or is not there; ConfigError:
        the secret is missing.
        """
        if self._pid != os.getpid():
            raise ConfigError("this membership belongs to the parent process: make a new one after fork")
        with self._condition:
            if self._is_left:
                raise RendezvousError(f"{self._who}: it has left the job; make a new membership to join again")
            self._phase, self._assigned, self._table = "asking", None, None
            self._due, self._knows_loss, self._is_epoch_over, self._on_loss = "", False, False, None
            if self._link is None:
                self._away_since = time.monotonic()  # it may have been away for long, and nobody needed it
            self._say({"ready": 1})
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="mlt-membership", daemon=True)
                self._thread.start()
            patience = Patience()
            self._begin_wait()
            while self._assigned is None:
                self._check()
                if self._has_ended:
                    return None
                patience.ask(self._waiting_text)
                self._wait(min(_LOOK_SECONDS, max(patience.left, 0.01)))
            return self._assigned

    def announce(self, number: int, announced: Announced, on_loss: Callable[[], object]) -> list[tuple[int, str, int]]:
        """Say where this process listens; returns rank, address and port of all members of the epoch ``number``.

        ``on_loss``: called, by another thread, if a member of the epoch is lost from now on, until the next ``ask`` or
        ``connected``. Raises EpochOverError, and as ``ask`` does.
        """
        limit = FORM_SECONDS + self._connect_seconds  # the coordinator gives the members FORM_SECONDS
        deadline = time.monotonic() + limit
        with self._condition:
            self._begin_wait()
            self._say(announced.to_json(number))
            while self._table is None and not self._knows_loss:
                self._check()
                if time.monotonic() >= deadline:
                    self._end_forming(f"the membership coordinator at {self.place} sent no addresses for {limit:g} s")
                    break
                self._wait(_LOOK_SECONDS)
            self._raise_if_over(number)
            assert self._table is not None
            self._on_loss = on_loss
            return self._table

    def connected(self) -> None:
        """The epoch has begun here. Raises EpochOverError if a member is lost already, and as ``ask`` does."""
        with self._condition:
            self._on_loss = None
            if self._failure is not None:
                raise self._failure
            self._raise_if_over(self._number)

    def _raise_if_over(self, number: int) -> None:
        if self._knows_loss:
            raise EpochOverError(f"{self._who}: epoch {number} does not begin: {self._due}")

    def await_due(self, seconds: float) -> bool:
        """Wait until the epoch is to end because a member is lost; whether that is so after ``seconds``."""
        deadline = time.monotonic() + seconds
        with self._condition:
            while not self._knows_loss and self._failure is None and (left := deadline - time.monotonic()) > 0:
                self._condition.wait(left)
            return self._knows_loss

    def leave(self, *, is_intent: bool = True) -> None:
        """End the membership. ``is_intent``: this process has done its work; else it counts as lost. Idempotent.

        If the coordinator is away it has a moment to come back; a restarted one that does not learn of the intent waits
        for this process as for one that died.
        """
        with self._condition:
            if self._is_left or self._pid != os.getpid():
                return
            if is_intent and self._was_connected:
                deadline = time.monotonic() + _LEAVE_SECONDS
                while self._link is None and not self._is_over() and (left := deadline - time.monotonic()) > 0:
                    self._condition.wait(left)
            self._is_left = True
            if is_intent:
                self._say({"left": 1})
            link, self._link = self._link, None
            self._condition.notify_all()
        if link is not None:
            link.link.close()

    def _begin_wait(self) -> None:
        self._silence, self._ping_in = 0.0, self._ping_seconds

    @property
    def _ping_seconds(self) -> float:
        return min(_PING_SECONDS, self._connect_seconds / 4)

    def _wait(self, seconds: float) -> None:
        """Wait for news, and see that the coordinator is alive: a stopped process keeps its connections."""
        before = time.monotonic()
        self._condition.wait(min(seconds, self._ping_seconds))
        # Not more than it was meant to take: this process may have been stopped itself.
        passed = min(time.monotonic() - before, 2 * seconds)
        self._silence += passed
        self._ping_in -= passed
        if self._ping_in <= 0:
            self._ping_in = self._ping_seconds
            self._say({"ping": 1})

    @property
    def _who(self) -> str:
        return f"{self.kind} of job {self._job!r}"

    def _check(self) -> None:
        """Raise what ended the membership, or that the coordinator is away for too long."""
        if self._failure is not None:
            raise self._failure
        if self._is_left:
            raise RendezvousError(f"{self._who}: its membership was closed by another thread")
        if self._link is None and time.monotonic() - self._away_since > self._connect_seconds:
            raise RendezvousError(
                f"{self._who}: no membership coordinator at {self.place} for {self._connect_seconds:g} s (last: "
                f"{self._cause}); start it, or start it again, at the same address (`mlt elastic`), and check "
                "MLT_ELASTIC and firewalls"
            )
        if self._link is not None and self._silence > self._connect_seconds:
            raise RendezvousError(
                f"{self._who}: no answer from the membership coordinator at {self.place} for {self._connect_seconds:g} "
                "s: its host is out of reach or overloaded, or its process is stopped; check the network, let it "
                "continue, or end it and start another at the same address (`mlt elastic`)"
            )

    def _waiting_text(self) -> str:
        if self._link is None:
            return (
                f"{self._who}: still waiting for the membership coordinator at {self.place} (last: {self._cause}; "
                f"times out after {self._connect_seconds:g} s)"
            )
        return (
            f"{self._who}: still waiting for the next epoch: for as many members as the job needs, and for the members "
            "of the running epoch to come to its end, between two of their steps"
        )

    def _say(self, message: Message) -> None:
        """Send, if connected; what the coordinator must know is sent again after each connection."""
        if self._link is not None:
            with contextlib.suppress(LinkError):
                self._link.send(message, timeout=_SEND_SECONDS)

    def _run(self) -> None:
        """The thread: one connection after the other, until the membership ends."""
        while True:
            try:
                link = self._connect()
            except MltError as error:
                if isinstance(error, LinkError):
                    self._note(str(error))
                else:
                    if not self._was_connected:
                        self._fail(error)
                        return
                    self._note(str(error))
            except OSError as error:
                self._note(cause_of(error))
            else:
                self._serve(link)
            with self._condition:
                if self._is_over():
                    return
                self._condition.wait(RETRY_SECONDS)
                if self._is_over():
                    return

    def _is_over(self) -> bool:
        return self._is_left or self._has_ended or self._failure is not None

    def _note(self, cause: str) -> None:
        with self._condition:
            self._cause = cause
            self._condition.notify_all()

    def _fail(self, error: MltError) -> None:
        with self._condition:
            self._failure = error
            on_loss, self._on_loss = self._on_loss, None
            self._condition.notify_all()
        if on_loss is not None:
            on_loss()

    def _connect(self) -> ProvedLink:
        """A connection whose both ends have proved the secret. Raises OSError, LinkError, or what ends the try."""

        def check(address: str) -> None:
            secret_module.require(self._secret, self._insecure, address, f"this {self.kind} would connect to")

        found = look_up(self.place.host, self.place.port, socket.SOCK_STREAM)
        connection = dial(found, _CONNECT_SECONDS, check)
        link = Link(connection, "the membership coordinator of a job of mlt")
        try:

            def hear() -> Message:
                return link.receive(timeout=HANDSHAKE_SECONDS, limit=_MAX_OPENING_BYTES)

            try:
                prover = handshake_client.handshake(NAME, VERSION, self._secret, link.send, hear)
            except handshake_client.HandshakeError as error:
                raise self._handshake_failure(error) from None
            name = f"on {platform.node() or 'a host'}, process {os.getpid()}"
            hello = Hello(self.id, self.kind, self._job, name[:200], self._age, self._number)
            link.send(handshake_client.proved(prover, hello.to_json()))
            link.watch_network()
        except BaseException:
            link.close()
            raise
        return ProvedLink(link, prover)

    def _handshake_failure(self, error: handshake_client.HandshakeError) -> MltError:
        where = f"{self._who}: what listens at {self.place}"
        if error.unproved:
            why = "this process has none" if self._secret is None else "it has another one, or is of another job"
            return PeerMismatchError(
                f"{where} did not prove that it knows the job's secret: {why}; give all processes of the job, and its "
                f"coordinator, the same {secret_module.VARIABLE}"
            )
        if error.version is not None:
            return PeerMismatchError(f"{where}: {error}; install the same mlt release on all hosts")
        return RendezvousError(f"{where} is no membership coordinator ({error}); check MLT_ELASTIC")

    def _serve(self, link: ProvedLink) -> None:
        """Read messages until the connection breaks."""
        cause = ""
        seconds: float | None = HANDSHAKE_SECONDS  # for the first reply
        try:
            while True:
                self._on_message(link, link.receive(seconds))
                seconds = None
                with self._condition:
                    if self._is_over():
                        break
        except LinkError as error:
            cause = str(error)
        with self._condition:
            self._link = None
            self._away_since = time.monotonic()
            self._cause = cause or self._cause
            if self._phase == "forming" and not self._is_over():
                self._end_forming(f"the connection to the membership coordinator broke: {cause}")
            is_lost = self._was_connected and not self._is_over()
            self._condition.notify_all()
        link.link.close()
        if is_lost:
            logger.warning(
                "%s: lost the membership coordinator at %s (%s): the running epoch goes on, and only a change of "
                "members needs it; start it again at the same address", self._who, self.place, cause,
            )  # fmt: skip

    def _on_message(self, link: ProvedLink, message: Message) -> None:
        on_loss: Callable[[], object] | None = None
        with self._condition:
            self._silence = 0.0
            if "welcome" in message:
                self._age = checked(lambda: number_of(message["welcome"]))
                self._link, self._was_connected = link, True
                own = self._assigned
                if self._phase == "running" and own is not None:
                    self._say({"was": own.number, "workers": list(own.workers), "services": list(own.services)})
                elif self._phase == "asking":
                    self._say({"ready": 1})
            elif "age" in message:
                self._age = checked(lambda: number_of(message["age"]))
            elif "epoch" in message:
                if self._phase == "asking":
                    self._assigned = checked(lambda: _assignment(message, self.id))
                    self._number = self._assigned.number
                    self._phase = "forming"  # not by the thread that asks: the connection may break before it wakes
            elif "table" in message:
                place = self._assigned
                if place is not None and message["table"] == place.number:
                    size = len(place.workers) + len(place.services)
                    self._table = checked(lambda: _table(message, size))
                    self._phase = "running"
            elif "again" in message:
                if self._assigned is not None and message["again"] == self._assigned.number:
                    self._end_forming(_words(message, "why"))
            elif "due" in message:
                if self._phase == "running" and self._assigned and message["due"] == self._assigned.number:
                    self._due = self._due or _words(message, "why")
                    if message.get("lost") is True:
                        self._knows_loss = True
                        on_loss, self._on_loss = self._on_loss, None
            elif "over" in message:
                if self._phase == "running" and self._assigned and message["over"] == self._assigned.number:
                    self._is_epoch_over = True
            elif "refused" in message:
                why = _words(message, "refused")
                text = f"{self._who}: refused by the membership coordinator at {self.place}: {why}"
                self._failure = checked(lambda: from_code(str(message.get("code")), text, -1))
                on_loss, self._on_loss = self._on_loss, None
            elif "end" in message:
                self._has_ended = True
            self._condition.notify_all()
        if on_loss is not None:
            on_loss()

    def _end_forming(self, why: str) -> None:
        """The epoch that was assigned does not begin."""
        self._due, self._knows_loss = why, True


def _assignment(message: Message, own: str) -> Assignment:
    workers, services = ids_of(message["workers"]), ids_of(message["services"])
    rank = number_of(message["rank"])
    if (*workers, *services)[rank : rank + 1] != (own,):
        raise ValueError("the rank of another member")
    return Assignment(number_of(message["epoch"]), rank, workers, services)


def _table(message: Message, size: int) -> list[tuple[int, str, int]]:
    table = [(number_of(rank), text_of(host, 255), number_of(port, 65_535)) for rank, host, port in message["ranks"]]
    if [rank for rank, *_ in table] != list(range(size)):
        raise ValueError("a table of other ranks")
    return table


def _words(message: Message, name: str) -> str:
    value: Any = message.get(name)
    return shown(value)[:2_000] if isinstance(value, str) else "no reason is given"


def _close_in_child() -> None:
    """A forked process must not keep its parent's connection open: the parent's death would not show."""
    for member in list(_members):
        link = member._link
        if link is not None and (number := link.link.fileno()) >= 0:
            nothing = os.open(os.devnull, os.O_RDWR)
            os.dup2(nothing, number)
            os.close(nothing)


os.register_at_fork(after_in_child=_close_in_child)
