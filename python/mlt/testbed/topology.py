"""Topology of a testbed: hosts, leaves, spines, and the rate, delay and loss of each link.

One switch joins up to ``MAX_HOSTS`` hosts. With spines, leaves get the hosts in blocks, every leaf has one link to
every spine, and leaves spread flows over spines by a hash of addresses and ports (ECMP). The YAML file has these fields
by these names; ``json_schema`` is for editors. Units in the models: bit/s, bytes, fractions, seconds.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from mlt._shared.counts import count_of
from mlt._shared.field_errors import expectation, given
from mlt._shared.structured_text import SyntaxProblem, compose_yaml, line_at, parse_yaml
from mlt._shared.text_files import UnreadableError, read_text
from mlt._shared.unit_fields import LOSS, RATE, SIZE, TIME, Unit
from mlt.testbed.errors import BadTopologyError

MAX_HOSTS, MAX_LEAVES, MAX_SPINES = 64, 16, 16
# Size of the switch program's port table.
MAX_PORTS = 256


# htb and tbf are inaccurate below the first rate; a software switch cannot carry more than the second.
Rate = Annotated[int, Unit(RATE, minimum=8_000, maximum=100e9, whole=True)]
# The minimum is one packet.
Size = Annotated[int, Unit(SIZE, minimum=2_000, maximum=2**30, whole=True)]
Loss = Annotated[float, Unit(LOSS, maximum=1)]
Delay = Annotated[float, Unit(TIME, maximum=10)]
# IPv6 does not run below 1280.
Mtu = Annotated[int, Field(ge=1280, le=9000, strict=True)]
_LOSSES = ("loss", "loss_up", "loss_down")
QueueKind = Literal["ebpf", "red", "fifo"]
Direction = Literal["up", "down"]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class LinkSettings(_Strict):
    """Settings of one link; an omitted field keeps the topology's value."""

    rate: Rate | None = Field(default=None, description="rate in both directions")
    buffer: Size | None = Field(default=None, description="buffer of the switch ports on this link")
    mtu: Mtu | None = Field(default=None, description="MTU of both ends, in bytes")
    loss: Loss | None = Field(default=None, description="loss in both directions; loss_up and loss_down override it")
    loss_up: Loss | None = Field(default=None, description="loss from the host to its switch, or from leaf to spine")
    loss_down: Loss | None = Field(default=None, description="loss in the other direction")
    delay: Delay | None = Field(
        default=None, description="delay in both directions; delay_up and delay_down override it"
    )
    delay_up: Delay | None = Field(default=None, description="delay from the host to its switch, or from leaf to spine")
    delay_down: Delay | None = Field(default=None, description="delay in the other direction")
    jitter: Delay | None = Field(default=None, description="jitter in both directions; overridden like delay")
    jitter_up: Delay | None = Field(default=None, description="jitter from the host to its switch, or leaf to spine")
    jitter_down: Delay | None = Field(default=None, description="jitter in the other direction")

    @property
    def has_delay_line(self) -> bool:
        """Whether the link is made with a delay line; a delay of 0 counts, so that it can be changed later."""
        values = (self.delay, self.delay_up, self.delay_down, self.jitter, self.jitter_up, self.jitter_down)
        return any(value is not None for value in values)


class Topology(_Strict):
    """The whole file. Links are named ``host2`` (a host and its switch) and ``leaf0-spine1``."""

    hosts: Annotated[int, Field(ge=1, le=MAX_HOSTS, strict=True)]
    spines: Annotated[int, Field(ge=0, le=MAX_SPINES, strict=True)] = 0
    leaves: Annotated[int, Field(ge=1, le=MAX_LEAVES, strict=True)] | None = Field(
        default=None, description="default: 1 without spines, else 2 (1 for a single host)"
    )
    rate: Rate = Field(default=1_000_000_000, description="rate of every link in each direction")
    buffer: Size | None = Field(
        default=None, description="buffer of every switch port; default: the policy's, or 256KiB without policy"
    )
    loss: Loss = Field(default=0.0, description="loss on every host's link towards its switch, once per path")
    delay: Delay | None = Field(
        default=None, description="delay on every host's link towards its switch, once per path; 0: can be set later"
    )
    jitter: Delay | None = Field(
        default=None, description="up to this much more delay, drawn uniformly for each packet; order is kept"
    )
    uplink: LinkSettings = Field(default=LinkSettings(), description="settings of the links between leaves and spines")
    links: dict[str, LinkSettings] = Field(default_factory=dict, description="settings of single links by name")
    mtu: Mtu = Field(default=1500, description="MTU of every link, in bytes")
    policy: str | None = Field(default=None, description="a file of 'mlt switch'; relative to the topology file")
    queue: QueueKind = Field(
        default="ebpf", description="ebpf: mlt's program over htb. red: prio and red. fifo: one FIFO"
    )
    seed: Annotated[int, Field(ge=0, lt=2**63, strict=True)] = Field(default=1, description="seed of the random losses")

    @model_validator(mode="after")
    def _consistent(self) -> Topology:
        leaves = self.leaf_count
        if self.spines == 0 and leaves > 1:
            raise ValueError(f"{leaves} leaves need spines to join them; add spines: 1 or more (--spines 1)")
        if leaves > self.hosts:
            raise ValueError(
                f"{count_of(leaves, 'leaf', 'leaves')} for {count_of(self.hosts, 'host')}: a leaf has 1 host at least"
            )
        if self.hosts + 2 * leaves * self.spines > MAX_PORTS:
            raise ValueError(f"{self.hosts + 2 * leaves * self.spines} switch ports; {MAX_PORTS} at most")
        known = self.link_names()
        for name in self.links:
            if name not in known:
                raise ValueError(f"links.{name}: unknown link; known are {', '.join(known)}")
        if self.queue == "fifo" and self.policy is not None:
            raise ValueError("queue: fifo has no classes; leave the policy out, or choose ebpf or red")
        return self

    @property
    def leaf_count(self) -> int:
        """Number of switches with hosts."""
        if self.leaves is not None:
            return self.leaves
        return min(2, self.hosts) if self.spines else 1

    def leaf_names(self) -> list[str]:
        """Names of the leaves; a switch without spines is just "switch"."""
        return [f"leaf{i}" for i in range(self.leaf_count)] if self.spines else ["switch"]

    def host_names(self) -> list[str]:
        return [f"host{i}" for i in range(self.hosts)]

    def spine_names(self) -> list[str]:
        return [f"spine{i}" for i in range(self.spines)]

    def link_names(self) -> list[str]:
        """Hosts' links first, then those between leaves and spines."""
        return self.host_names() + [f"{leaf}-{spine}" for leaf in self.leaf_names() for spine in self.spine_names()]

    def settings(self, link: str) -> LinkSettings:
        """One link's settings, over the uplinks', over the topology's; ``buffer`` may be None, and without a delay line
        delays and jitters are."""
        own, group = self.links.get(link, LinkSettings()), LinkSettings()
        is_host = link.startswith("host")
        if not is_host:
            group = self.uplink
        rate = _first(own.rate, group.rate, self.rate)
        up = _first(own.loss_up, own.loss, group.loss_up, group.loss, self.loss if is_host else 0.0)
        down = _first(own.loss_down, own.loss, group.loss_down, group.loss, 0.0)
        buffer = own.buffer or group.buffer or self.buffer
        mtu = own.mtu or group.mtu or self.mtu
        delays = {}
        for field, ours in (("delay", self.delay), ("jitter", self.jitter)):
            for direction in ("up", "down"):
                name = f"{field}_{direction}"
                given = (getattr(own, name), getattr(own, field), getattr(group, name), getattr(group, field))
                last = ours if is_host and direction == "up" else None
                delays[name] = next((value for value in (*given, last) if value is not None), None)
        return LinkSettings(rate=rate, buffer=buffer, mtu=mtu, loss_up=up, loss_down=down, **delays)

    def with_link(self, link: str, **changes: Any) -> Topology:
        """A copy with changed settings of one link."""
        known = self.link_names()
        if link not in known:
            raise BadTopologyError(f"no link {link!r}; there are {', '.join(known)}")
        own = self.links.get(link, LinkSettings()).model_dump(exclude_none=True)
        return self.changed(links={**self.as_dict()["links"], link: own | changes})

    def changed(self, **changes: Any) -> Topology:
        """A checked copy; raises BadTopologyError."""
        return make({**self.as_dict(), **changes})

    def as_dict(self) -> dict[str, Any]:
        """The fields from which ``make`` builds an equal topology."""
        return self.model_dump(mode="json", exclude_none=True)


def _first(*values: Any) -> Any:
    return next(value for value in values if value is not None)


def make(fields: dict[str, Any]) -> Topology:
    """Validate ``fields`` and build a Topology; raises BadTopologyError that names every invalid field."""
    try:
        return Topology.model_validate(fields)
    except ValidationError as error:
        raise BadTopologyError("topology: " + "; ".join(_explain(problem) for problem in error.errors())) from None


def load(path: str | Path, **overrides: Any) -> Topology:
    """Read a YAML file; ``overrides`` take precedence. A policy's path is relative to the file."""
    try:
        text = read_text(path)
        raw = parse_yaml(text)
    except UnreadableError as error:
        raise BadTopologyError(str(error)) from None
    except SyntaxProblem as error:
        place = path if error.line is None else f"{path}:{error.line}"
        raise BadTopologyError(f"{place}: not {error.kind}: {error.reason}") from None
    if not isinstance(raw, dict):
        raise BadTopologyError(f"{path}:1: expected fields such as 'hosts: 4'; see docs/testbed.md")
    if isinstance(raw.get("policy"), str):
        raw["policy"] = os.path.abspath(os.path.join(os.path.dirname(path), raw["policy"]))
    try:
        return Topology.model_validate({**_written(raw), **overrides})
    except ValidationError as error:
        root = compose_yaml(text)
        found = sorted((line_at(root, problem["loc"]) or 1, _explain(problem)) for problem in error.errors())
        raise BadTopologyError("\n".join(f"{path}:{line}: {problem}" for line, problem in found)) from None


def _written(fields: dict[Any, Any]) -> dict[Any, Any]:
    """``fields`` with the losses as the text that the file has: 1 without a unit is rejected there as in an option,
    while ``make`` takes fractions."""

    def text_of(key: object, value: object) -> object:
        if isinstance(value, dict):
            return _written(value)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return repr(value) if is_number and key in _LOSSES else value

    return {key: text_of(key, value) for key, value in fields.items()}


def json_schema() -> dict[str, Any]:
    """JSON schema of the file."""
    return Topology.model_json_schema()


def check_name(name: str) -> str:
    """Validate a testbed's name, which becomes part of file names; raises BadTopologyError."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}", name):
        raise BadTopologyError(f"name {name!r}: letters, digits, - and _, 32 at most")
    return name


def _explain(problem: Any) -> str:
    where = ".".join(str(part) for part in problem["loc"])
    message = expectation(problem)
    if problem["type"] == "extra_forbidden":
        message = "unknown field"
    elif problem["type"] != "missing" and not problem["type"].startswith("value_error"):
        message += given(problem["input"])
    return f"{where}: {message}" if where else message
