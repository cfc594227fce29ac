"""Interface of every vendor module, and the header of every generated file.

A vendor is one module in ``vendors`` with a ``TARGET``; the registry finds it. It writes (``render``, ``undo``), reads
its own language back without using what it wrote (``parse``), and reads counters (``parse_counters``).
"""

from __future__ import annotations

import re
import textwrap
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from mlt.switch_configs.behaviour import Behaviour, PortBehaviour, QueueBehaviour, RandomDetect
from mlt.switch_configs.capabilities import Capabilities
from mlt.switch_configs.counters import COUNTS, QueueCounters
from mlt.switch_configs.errors import ParseError, SwitchConfigError
from mlt.switch_configs.plan import Plan
from mlt.switch_configs.platforms import Spec, find
from mlt.switch_configs.policy import DSCP_VALUES

UNCONFIRMED = "UNCONFIRMED"


@dataclass(frozen=True)
class Unconfirmed:
    """A syntax or behaviour that no vendor document or device confirmed: a regular expression over lines, and why."""

    pattern: str
    why: str


@dataclass(frozen=True)
class Procedure:
    """Instructions for the user's files; text without ``{ports}``, one command or sentence per entry."""

    apply: tuple[str, ...]
    verify: tuple[str, ...]
    undo: tuple[str, ...]
    notes: tuple[str, ...] = ()


@dataclass
class Reading:
    """The rules for reading a text. ``strict``: mlt's own text, where every line must be known. Otherwise a device's:
    lines other than QoS are skipped and counted; unknown QoS is listed in ``unread``, QoS that stays unchanged in
    ``kept``.

    ``queue_memory_bytes``: the queue memory for percentages, if the text does not state it.
    """

    strict: bool = True
    queue_memory_bytes: int | None = None
    ports: tuple[str, ...] = ()
    skipped: int = 0
    unread: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)

    def foreign(self, error: ParseError) -> None:
        """A line other than QoS."""
        if self.strict:
            raise error
        self.skipped += 1

    def unknown(self, error: ParseError) -> None:
        """A QoS statement that cannot be read or compared."""
        if self.strict:
            raise error
        self.unread.append(f"{error.where}: {error.cause}")

    def name(self, port: str) -> str:
        """``port`` as the policy writes it, if only the case differs."""
        return next((known for known in self.ports if known.lower() == port.lower()), port)

    def wants(self, port: str) -> bool:
        """False for a device's port that the policy does not touch."""
        return not self.ports or port in self.ports


class Target(ABC):
    """One switch system on one platform; its only state is ``spec`` (release, platform) and that platform's facts."""

    name: ClassVar[str]
    title: ClassVar[str]
    comment: ClassVar[str]
    capabilities: ClassVar[Capabilities]
    procedure: ClassVar[Procedure]
    unconfirmed: ClassVar[tuple[Unconfirmed, ...]] = ()
    # The device's whole configuration for ``diff``; for JSON, the name by which ``parse`` knows it.
    whole: ClassVar[str] = "what 'show running-config' prints"
    whole_json: ClassVar[str] = ""
    # Commands for a device's counters, with PORT filled in, and the ``COUNTS`` that the system has.
    counter_commands: ClassVar[tuple[str, ...]] = ()
    counts: ClassVar[frozenset[str]] = COUNTS
    # QoS in a device's configuration: first lines of sections, and lines inside interface sections.
    qos_sections: ClassVar[re.Pattern[str]] = re.compile("")
    qos_inside: ClassVar[re.Pattern[str]] = re.compile("")

    def __init__(self, spec: Spec | None = None) -> None:
        self.spec = Spec(self.name) if spec is None else spec
        self.platform = find(self.name, self.spec.platform)

    @property
    def able(self) -> Capabilities:
        """``capabilities`` on this platform."""
        return self.capabilities.on(self.platform)

    @abstractmethod
    def native_port(self, label: str) -> str:
        """This system's name of a policy's port number; a name that is not a number stays unchanged."""

    def port_problem(self, port: str) -> str | None:
        """Reason why no device of this platform has a port of that name in its factory configuration; used if no
        running configuration gives the ports."""
        return None

    def of_release(self) -> str:
        """Changes due to the release of ``spec``, as text."""
        return f"the release changes nothing written for {self.name}; one older than a fact requires is rejected"

    @abstractmethod
    def render(self, plan: Plan) -> dict[str, str]:
        """File name -> text without header."""

    @abstractmethod
    def undo(self, plan: Plan) -> dict[str, str]:
        """File name -> text that removes exactly what ``render`` adds, bindings before what they bind."""

    def against(self, plan: Plan, running: str) -> tuple[dict[str, str], dict[str, str], tuple[str, ...]]:
        """(apply, undo, notes) for one device's running configuration, so that the undo also restores replaced
        statements; raises SwitchConfigError if this system's own checkpoint does that."""
        raise SwitchConfigError(
            f"{self.name}: does not use --running; the checkpoint in its header restores replaced statements"
        )

    @abstractmethod
    def parse(self, files: Mapping[str, str], reading: Reading | None = None) -> Behaviour:
        """The behaviour of a configuration in this system's language, mlt's own unless ``reading`` says otherwise;
        raises ParseError that names file and line."""

    @abstractmethod
    def parse_counters(self, text: str) -> list[QueueCounters]:
        """Counters from the pasted output of the ``verify`` commands."""

    def asked_for_counters(self, plan: Plan) -> list[str]:
        """``counter_commands`` for every port of the plan."""
        return [command.replace("PORT", port) for command in self.counter_commands for port in plan.ports]

    def steps(self, files: Mapping[str, str]) -> Procedure:
        """Instructions for these files; ``procedure`` unless a vendor's depend on the files."""
        return self.procedure

    def verify_commands(self, plan: Plan, *, ports: int = 1) -> tuple[str, ...]:
        """The verify procedure, with commands per port for the first ``ports`` of the plan."""
        found = [
            command.replace("PORT", port)
            for command in self.procedure.verify
            for port in (plan.ports[:ports] if "PORT" in command else plan.ports[:1])
        ]
        return tuple(dict.fromkeys(found))

    def take_lines(self, files: Mapping[str, str], reading: Reading, take: Callable[[str, str], None]) -> None:
        """Call ``take`` (place, line) for every QoS line; for mlt's own text, for every line.

        An indented line belongs to the last unindented one. A QoS line that ``take`` does not know is ``unread``.
        """
        for name, text in files.items():
            kind = "foreign"
            for number, line in code_lines(text, self.comment):
                where = f"{name}:{number}"
                if not line.startswith(" "):
                    interface = re.match(r"interface \S+$", line) is not None
                    kind = "qos" if self.qos_sections.match(line) else "interface" if interface else "foreign"
                qos = kind == "qos" or (kind == "interface" and self.qos_inside.match(line.strip()) is not None)
                if reading.strict or qos or (kind == "interface" and not line.startswith(" ")):
                    try:
                        take(where, line)
                    except ParseError as error:
                        (reading.unknown if qos else reading.foreign)(error)
                else:
                    reading.skipped += 1

    def fail(self, where: str, cause: str) -> ParseError:
        return ParseError(self.name, where, cause)


_UNDO_FROM = "the undo file is written by mlt switch rollback, with the options that generate had"


def header_lines(target: Target, plan: Plan, body: str, files: Mapping[str, str]) -> list[str]:
    """The header: policy, how to apply, verify and undo, unconfirmed and accepted points. No dates."""
    steps = target.steps(files)
    lines = [
        f"{plan.name}: QoS for bounded-loss training traffic on {target.title}",
        f"target {target.spec}: {target.platform.title}",
        f"policy {plan.name} sha256:{plan.policy.digest()}  by mlt switch generate; edit the policy, not this",
        "",
        "apply:",
        *[f"  {step}" for step in steps.apply],
        "verify:",
        *[f"  {step}" for step in target.verify_commands(plan)],
        "undo:",
        *[f"  {step}" for step in steps.undo],
        *([] if any("mlt switch rollback" in step for step in steps.undo) else [f"  {_UNDO_FROM}"]),
    ]
    if notes := (*steps.notes, *target.platform.notes(), *plan.notes):
        lines += ["notes:", *[f"  {note}" for note in notes]]
    marked = [item for item in target.unconfirmed if _first_match(item, body) is not None]
    if marked:
        lines.append(f"{UNCONFIRMED} (no vendor document or device confirmed it; try it on one port first):")
        lines += [f"  {item.why}" for item in marked]
    if plan.accepted:
        lines.append("NOT EXPRESSED here, accepted by the policy:")
        lines += [f"  {feature}: {why}" for feature, why in plan.accepted]
    return [piece for line in lines for piece in _wrap(line)]


def _wrap(line: str) -> list[str]:
    if len(line) <= 116:
        return [line]
    indent = " " * (len(line) - len(line.lstrip()) + 2)
    return textwrap.wrap(line, 116, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def _first_match(item: Unconfirmed, body: str) -> int | None:
    for index, line in enumerate(body.splitlines()):
        if re.search(item.pattern, line):
            return index
    return None


def decorate(target: Target, plan: Plan, body: str, files: Mapping[str, str]) -> str:
    """``body`` with the header on top and a mark above the first line of each unconfirmed kind."""
    lines = body.splitlines()
    marks: dict[int, list[str]] = {}
    for item in target.unconfirmed:
        index = _first_match(item, body)
        if index is not None:
            marks.setdefault(index, []).append(item.why)
    written = []
    start = 1 if lines and lines[0].startswith("#!") else 0
    written += lines[:start]
    written += [f"{target.comment} {line}".rstrip() for line in header_lines(target, plan, body, files)]
    for index, line in enumerate(lines[start:], start=start):
        indent = line[: len(line) - len(line.lstrip())]
        for why in marks.get(index, []):
            written += [f"{indent}{target.comment} {piece}" for piece in _wrap(f"{UNCONFIRMED}: {why}")]
        written.append(line)
    return "\n".join(written) + "\n"


def code_lines(text: str, comment: str) -> list[tuple[int, str]]:
    """(line number from 1, line without trailing blanks) of every line other than blanks and comments."""
    return [
        (number, line.rstrip())
        for number, line in enumerate(text.splitlines(), start=1)
        if line.strip() and not line.lstrip().startswith(comment)
    ]


class PortBuilder:
    """Collects a parser's data about one port and turns it into a PortBehaviour."""

    def __init__(self, queues: int = 8) -> None:
        self.queues = queues
        self.dscp: dict[int, int] = {}
        self.weights: dict[int, int] = {}
        self.random_detect: dict[int, RandomDetect] = {}
        self.limits: dict[int, int] = {}
        self.dynamic_limits: dict[int, str] = {}
        self.groups: dict[int, str] = {}
        self.group_weights: dict[str, int] = {}
        self.present: set[int] = set()

    def build(self, *, default_queue: int = 0) -> PortBehaviour:
        return PortBehaviour(
            dscp_to_queue=tuple(self.dscp.get(dscp, default_queue) for dscp in range(DSCP_VALUES)),
            queues=tuple(
                QueueBehaviour(
                    queue=number,
                    weight_percent=self.weights.get(number),
                    group=self.groups.get(number, "port"),
                    random_detect=self.random_detect.get(number),
                    limit_bytes=self.limits.get(number),
                    dynamic_limit=self.dynamic_limits.get(number),
                )
                for number in sorted(self.present)
            ),
            group_weights=self.group_weights,
        )
