"""Messages between the members of an elastic job and its coordinator: type and range of every field are validated.

    member         {"member", "kind", "job", "name", "age",     the first, with the proof of the secret
                    "epoch"}
                   {"was", "workers", "services"}               the epoch that it is in, after it has connected again
                   {"ready": 1}, {"here", ...}, {"left": 1}     see ``roster``
                   {"ping": 1}                                  while it waits; the reply is {"pong": 1}
    coordinator    {"welcome": age}, {"age"}                    the age is said again if it changes
                   {"refused", "code"}
                   {"epoch", "rank", "workers", "services"}     the members in rank order, by their ids
                   {"table", "ranks": [[rank, host, port]]}     of that epoch, which is running from now on
                   {"again", "why"}                             that epoch does not form: ask for the next
                   {"due", "why", "lost"}                       leave the running epoch between two steps
                   {"over"}                                     to services: no worker is left in that epoch
                   {"end"}                                      to services: nothing is left to serve

Each line after the first carries a count besides the proof, so that none can be repeated or left out unnoticed.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from mlt._shared.json_lines import line_of, object_of
from mlt._shared.link import Link, LinkError, Message
from mlt.job import interfaces
from mlt.job.epochs.settings import KINDS, Kind
from mlt.job.secret import Prover

NAME: Final = "elastic"
VERSION: Final = 1
MAX_NAME_LENGTH: Final = 200
MAX_ID_LENGTH: Final = 32
MAX_JOB_LENGTH: Final = 1_000
MAX_TEXT_LENGTH: Final = 2_000
MAX_NUMBER: Final = 2**53
# The ids of MAX_RANKS members, or their addresses.
MAX_LINE_BYTES: Final = 16 << 20


@dataclass(frozen=True, slots=True)
class Hello:
    """The first message of a member. ``age``: what an earlier coordinator gave it; ``name``: for texts;
    ``epoch``: number of its last one, 0 before the first."""

    member: str
    kind: Kind
    job: str
    name: str
    age: int | None
    epoch: int = 0

    @classmethod
    def parse(cls, content: str) -> Hello:
        """Raises ValueError."""
        said = object_of(content)
        kind = said.get("kind")
        if kind not in KINDS:
            raise ValueError("no kind of member")
        age = said.get("age")
        return cls(
            member=text_of(said.get("member"), MAX_ID_LENGTH),
            kind=kind,
            job=text_of(said.get("job"), MAX_JOB_LENGTH),
            name=text_of(said.get("name"), MAX_NAME_LENGTH),
            age=None if age is None else number_of(age),
            epoch=number_of(said.get("epoch")),
        )

    def to_json(self) -> Message:
        """Its fields, for ``parse``."""
        return {
            "member": self.member,
            "kind": self.kind,
            "job": self.job,
            "name": self.name,
            "age": self.age,
            "epoch": self.epoch,
        }


@dataclass(frozen=True, slots=True)
class Announced:
    """The address at which a member listens, and settings of its context that must equal rank 0's. ``dscp``: of
    control, then of the traffic classes."""

    host: str
    port: int
    dscp: tuple[int, ...]
    paths: int
    connects_on_use: bool
    checksums: bool

    @property
    def endpoint(self) -> tuple[str, int]:
        """Address and port."""
        return self.host, self.port

    @classmethod
    def parse(cls, said: Message) -> Announced:
        """Raises ValueError."""
        dscp = said.get("dscp")
        if type(dscp) is not list or len(dscp) > 16:
            raise ValueError("dscp is not a list of code points")
        return cls(
            host=text_of(said.get("host"), 255),
            port=number_of(said.get("port"), 65_535),
            dscp=tuple(number_of(one, 63) for one in dscp),
            paths=number_of(said.get("paths"), 65_535),
            connects_on_use=said.get("connects_on_use") is True,
            checksums=said.get("checksums") is True,
        )

    def to_json(self, number: int) -> Message:
        """A message about the epoch ``number``, for ``parse``."""
        return {
            "here": number,
            "host": self.host,
            "port": self.port,
            "dscp": list(self.dscp),
            "paths": self.paths,
            "connects_on_use": self.connects_on_use,
            "checksums": self.checksums,
        }

    def difference(self, first: Announced, rank: int) -> str | None:
        """Why a member of these settings cannot be in an epoch with rank 0; None if it can."""
        if interfaces.is_loopback(self.host) != interfaces.is_loopback(first.host):
            return (
                f"it would be rank {rank} at {self.host}, and rank 0 is at {first.host}: another host cannot reach a "
                "loopback address. Set MLT_ELASTIC to the same address on all hosts, or MLT_INTERFACE"
            )
        for name, own, other, remedy in (
            ("DSCPs", list(self.dscp), list(first.dscp), "MLT_QOS_POLICY, qos_policy="),
            ("number of paths", self.paths, first.paths, "MLT_PATHS, paths="),
            ("connects_on_use", self.connects_on_use, first.connects_on_use, "MLT_CONNECTS_ON_USE, connects_on_use="),
            ("checksums", self.checksums, first.checksums, "MLT_CHECKSUMS, checksums="),
        ):
            if own != other:
                return f"its {name} would be {own}, rank 0 has {other}: give all members the same ({remedy})"
        return None


class ProvedLink:
    """Messages over a ``Link`` whose handshake is complete. ``send`` from any thread, the rest from one.

    One end sends with ``send``, or with ``post`` and ``flush``, which never block. ``name``: the member at the other
    end, for texts.
    """

    def __init__(self, link: Link, prover: Prover, name: str = "") -> None:
        self.link = link
        self.name = name
        self._prover = prover
        self._sent = 0
        self._received = 0
        self._unsent = bytearray()

    def send(self, message: Message, timeout: float = 0.0) -> None:
        """Raises LinkClosedError, also if the other end does not read."""
        self.link.send(self._proved(message), timeout=timeout)

    def post(self, message: Message) -> None:
        """Let ``flush`` send it."""
        self._unsent += line_of(self._proved(message))

    def flush(self) -> bool:
        """Send as much of what was posted as the connection accepts at once; whether that is all.

        Raises LinkClosedError.
        """
        while self._unsent and (sent := self.link.send_some(self._unsent)):
            del self._unsent[:sent]
        return not self._unsent

    def _proved(self, message: Message) -> Message:
        self._sent += 1
        content = json.dumps({**message, "count": self._sent}, separators=(",", ":"))
        return {"content": content, "proof": self._prover.prove(content)}

    def take(self) -> Message | None:
        """A message that has been read already; None if none is complete. Raises LinkError."""
        return self._checked(self.link.take(MAX_LINE_BYTES))

    def receive_ready(self) -> Message | None:
        """Read what has arrived; a message if one is complete. Raises LinkError."""
        return self._checked(self.link.receive_ready(limit=MAX_LINE_BYTES))

    def receive(self, timeout: float | None) -> Message:
        """The next message. Raises LinkError."""
        message = self._checked(self.link.receive(timeout=timeout, limit=MAX_LINE_BYTES))
        assert message is not None
        return message

    def _checked(self, line: Message | None) -> Message | None:
        if line is None:
            return None
        content = line.get("content")
        if not isinstance(content, str) or not self._prover.check(line.get("proof"), content):
            raise LinkError("a message without a proof of the job's secret")
        try:
            message = object_of(content)
        except ValueError:
            raise LinkError("a message that is no JSON object") from None
        self._received += 1
        if message.get("count") != self._received:
            raise LinkError("a message out of order")
        return message


def checked(parse: Callable[[], Any]) -> Any:
    """``parse()``, with LinkError for what is not valid."""
    try:
        return parse()
    except (ValueError, TypeError, KeyError) as error:
        raise LinkError(f"an invalid message: {error}") from None


def ids_of(value: object) -> tuple[str, ...]:
    """A list of members. Raises ValueError."""
    if type(value) is not list:
        raise ValueError("no list of members")
    ids = tuple(text_of(one, MAX_ID_LENGTH) for one in value)
    if len(set(ids)) != len(ids):
        raise ValueError("a member twice")
    return ids


def number_of(value: object, maximum: int = MAX_NUMBER) -> int:
    """A whole number from 0. Raises ValueError."""
    if type(value) is not int or not 0 <= value <= maximum:
        raise ValueError(f"a number is not in 0 to {maximum}")
    return value


def text_of(value: object, maximum: int = MAX_TEXT_LENGTH) -> str:
    """A printable text. Raises ValueError."""
    if not isinstance(value, str) or not 1 <= len(value) <= maximum or not value.isprintable():
        raise ValueError(f"a text has not 1 to {maximum} printable characters")
    return value
