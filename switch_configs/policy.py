"""The policy: the queue of each DSCP, and the thresholds at which each queue marks and drops.

Paper: sections 4.2.2 and 5.2 (priority by DSCP, selective drop by ECN), appendix D (other traffic). The fields of
``wred`` have OpenConfig QoS's names and meaning: ``enable_ecn`` marks ECN-capable packets, ``drop`` drops the others;
both together make the drop selective.

Units: thresholds and limits in bytes, rates in bits per second, shares in percent.
Absent on purpose: features of a single vendor (see ``vendors``), and rules across fields (``semantics``).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from mlt.switch_configs.errors import PolicyError, SwitchConfigError
from mlt.switch_configs.platforms import parse_spec
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, WithJsonSchema, field_validator

from mlt._shared.field_errors import expectation, given
from mlt._shared.structured_text import SyntaxProblem, compose_yaml, line_at, parse_yaml
from mlt._shared.text_files import UnreadableError, read_text
from mlt._shared.unit_fields import RATE, SIZE, Unit

DSCP_VALUES = 64
LARGEST_SWITCH = 1_024  # ports
# RFC 2474 (class selectors), 2597 (assured forwarding), 3246 (ef), 5865 (voice-admit), 8622 (le).
DSCP_NAMES = {
    "default": 0, "be": 0, "le": 1, "ef": 46, "voice-admit": 44,
    **{f"cs{number}": 8 * number for number in range(8)},
    **{f"af{major}{minor}": 8 * major + 2 * minor for major in range(1, 5) for minor in range(1, 4)},
}  # fmt: skip


def _code_point(value: object) -> object:
    if not isinstance(value, str):
        return value
    if value.strip().lower() not in DSCP_NAMES:
        raise ValueError(f"a code point is a number from 0 to 63 or a name ({', '.join(DSCP_NAMES)})")
    return DSCP_NAMES[value.strip().lower()]


def _schema(pattern: str, example: str) -> WithJsonSchema:
    text = {"type": "string", "pattern": pattern, "examples": [example]}
    return WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 0}, text]})


_DSCP_SCHEMA = _schema(f"^({'|'.join(DSCP_NAMES)})$", "ef")
Dscp = Annotated[int, Field(ge=0, lt=DSCP_VALUES, strict=True), BeforeValidator(_code_point), _DSCP_SCHEMA]
PositiveInt = Annotated[int, Field(gt=0, strict=True)]
Size = Annotated[PositiveInt, Unit(SIZE, minimum=1, whole=True)]
Rate = Annotated[PositiveInt, Unit(RATE, minimum=1, whole=True)]


def _percent(value: object) -> object:
    """Text such as ``5%`` as its number; a field whose name ends in percent counts these."""
    match = _PERCENT.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        return value
    number = float(match[1])
    return int(number) if number.is_integer() else number


def _percent_schema(**limits: float) -> WithJsonSchema:
    text = {"type": "string", "pattern": r"^\s*[0-9]+(\.[0-9]+)?\s*%?\s*$", "examples": ["5%"]}
    return WithJsonSchema({"anyOf": [{"type": "number", **limits}, text]})


_PERCENT = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*%?\s*")
Percent = Annotated[
    int, Field(gt=0, le=100, strict=True), BeforeValidator(_percent),
    _percent_schema(exclusiveMinimum=0, maximum=100),
]  # fmt: skip
Share = Annotated[
    int, Field(gt=0, lt=100, strict=True), BeforeValidator(_percent),
    _percent_schema(exclusiveMinimum=0, exclusiveMaximum=100),
]  # fmt: skip
Tolerance = Annotated[
    float, Field(ge=0, lt=50), BeforeValidator(_percent), _percent_schema(minimum=0, exclusiveMaximum=50)
]
Name = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9-]{0,15}$")]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Wred(_Strict):
    """One queue's random early detection, as OpenConfig's ``wred/uniform/config``."""

    min_threshold_bytes: Size = Field(description="S_i: above this depth ECT is marked and Not-ECT dropped")
    enable_ecn: bool = Field(default=True, strict=True, description="mark ECN-capable packets above S_i")
    drop: bool = Field(default=True, strict=True, description="drop packets that are not ECN-capable above S_i")
    max_drop_probability_percent: Percent = Field(default=100, description="probability at and above the threshold")


class DataClass(_Strict):
    """One of the P priority classes of model data."""

    name: Name
    dscp: Dscp
    wred: Wred
    limit_bytes: Size = Field(description="L_i: at this depth every packet is dropped")


class ControlClass(_Strict):
    """The reserved class of ACK, PROBE, BITMAP, STOP and the TCP control connection. It never has RED."""

    dscp: Dscp = Field(default=48, description="DSCP of the hosts' control packets")
    extra_dscp: tuple[Dscp, ...] = Field(
        default=(), description="other DSCPs in this class, for example of routing protocols"
    )


class DefaultClass(_Strict):
    """Other traffic: every DSCP that no other class names. Appendix D of the paper."""

    sharing: Literal["lowest", "fair", "weighted"] = Field(
        default="lowest",
        description=(
            "lowest: lowest priority, below data. fair: data as a whole and other traffic share by weight, with strict "
            "priority within data (needs two scheduler levels). weighted: one level, data classes share by weight too"
        ),
    )
    dnn_share_percent: Share = Field(default=50, description="the data classes' share when sharing is fair or weighted")


class Switch(_Strict):
    """Properties of the switch, for checks and units; only ``buffers`` makes a device receive these sizes."""

    queues: Annotated[int, Field(ge=3, le=8, strict=True)] = 8
    shared_buffer_bytes: Size
    queue_memory_bytes: Size | None = Field(
        default=None, description="max bytes in one queue; required by targets that use percentages of it"
    )
    buffers: Literal["keep", "write"] = Field(
        default="keep",
        description=(
            "keep: leave the device's buffer pools and profiles unchanged, without L_i. write: also write pools and "
            "profiles for L_i, which changes the shared buffers of the whole switch"
        ),
    )
    link_rate_bits_per_second: Rate
    packet_bytes: Size = Field(default=1500, description="size of the largest data packet")
    ports: tuple[str | int, ...] = Field(
        min_length=1, description='numbers, ranges ("1-16") or the device\'s own names'
    )


class Policy(_Strict):
    """The whole file; usually read by ``load``."""

    version: Literal[1] = 1
    name: Name = "mlt"
    description: str = ""
    switch: Switch
    control: ControlClass = ControlClass()
    data: tuple[DataClass, ...] = Field(min_length=1, description="highest priority (front layers) first")
    default: DefaultClass = DefaultClass()
    targets: tuple[str, ...] = Field(
        default=(),
        description=(
            'the devices of this policy, "system[/release][@platform]": checked without --target, and used in place of '
            "a bare system name"
        ),
    )
    rounding_tolerance_percent: Tolerance = Field(
        default=0.0, description="max change of a threshold by a target's coarser units; 0: none"
    )
    accept: dict[str, dict[str, str]] = Field(
        default_factory=dict,
        description="target -> feature -> reason to accept that it is missing there; else it is an error",
    )

    @field_validator("targets")
    @classmethod
    def _specs(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        systems = []
        for text in value:
            try:
                systems.append(parse_spec(text).system)
            except SwitchConfigError as error:
                raise ValueError(str(error)) from error
        if repeated := sorted({system for system in systems if systems.count(system) > 1}):
            raise ValueError(f"{', '.join(repeated)}: name one device per system, others with --target")
        return value

    @field_validator("accept")
    @classmethod
    def _reasons(cls, value: dict[str, dict[str, str]]) -> dict[str, dict[str, str]]:
        for target, features in value.items():
            for feature, why in features.items():
                if not why.strip():
                    raise ValueError(f"accept.{target}.{feature}: write the reason, it goes into the output's header")
                # A line break would end the comment and turn the rest into commands.
                if not (why.isascii() and why.isprintable()):
                    raise ValueError(f"accept.{target}.{feature}: one line of plain ASCII, it becomes a comment")
        return value

    def class_to_dscp(self) -> tuple[int, ...]:
        """The DSCP of each data class, highest priority first: the DSCP of the transport's packets of class i."""
        return tuple(data.dscp for data in self.data)

    @property
    def control_dscp(self) -> int:
        """The DSCP of the control class."""
        return self.control.dscp

    def digest(self) -> str:
        """Hash of the meaning, not of the text: comments, key order and descriptions do not change it."""
        body = self.model_dump(mode="json", exclude={"description", "targets"})
        return hashlib.sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()).hexdigest()[:16]

    def ports(self) -> tuple[str, ...]:
        """The ports with ranges expanded, in file order."""
        return expand_ports(self.switch.ports)


def expand_ports(ports: tuple[str | int, ...]) -> tuple[str, ...]:
    """``(1, "3-5", "swp9")`` -> ``("1", "3", "4", "5", "swp9")``; raises ValueError on a port 0, a descending range, a
    range of names, and a repeated port."""
    found: list[str] = []
    for port in ports:
        text = str(port).strip()
        match = re.fullmatch(r"([0-9]+)(?:-([0-9]+))?", text)
        if match is None:
            if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9/_.:-]{0,31}", text):
                raise ValueError(f"port {text!r}: a name is letters, digits and / _ . : -")
            if re.search(r"\d-([A-Za-z]+|[\d/]*/)?\d+$", text):
                raise ValueError(f"port {text!r}: a range is of numbers (1-4); write out the device's own names")
            found.append(text)
            continue
        first, last = int(match[1]), int(match[2] or match[1])
        if first == 0:
            raise ValueError(f"port {text!r}: ports are counted from 1 (a device's own name may have a 0)")
        if last < first:
            raise ValueError(f"port range {text!r} runs backwards; write {last}-{first}")
        if last > LARGEST_SWITCH:
            raise ValueError(f"port {text!r}: no switch has more than {LARGEST_SWITCH:,} ports")
        found += [str(number) for number in range(first, last + 1)]
    repeated = sorted(port for port, count in Counter(found).items() if count > 1)
    if repeated:
        raise ValueError(f"ports named twice: {', '.join(repeated)}")
    return tuple(found)


def parse(text: str, *, source: str = "policy") -> Policy:
    """Read YAML text into a Policy without the rules of ``semantics``; raises PolicyError with every bad field."""
    try:
        raw = parse_yaml(text)
    except SyntaxProblem as error:
        raise PolicyError(source, [f"not {error.kind}: {error.reason}"], [error.line]) from None
    if not isinstance(raw, dict):
        raise PolicyError(source, ["expected a mapping with switch, data, ...; see examples/switch"], [1])
    return _policy_of(raw, source, text)


def _policy_of(raw: dict[Any, Any], source: str, text: str | None = None) -> Policy:
    """``text``: of the file, for the lines in errors."""
    try:
        return Policy.model_validate(raw)
    except ValidationError as error:
        root = None if text is None else compose_yaml(text)
        found = [(line_at(root, problem["loc"]), _explain(problem)) for problem in error.errors()]
        found.sort(key=lambda one: one[0] or 0)
        raise PolicyError(source, [problem for _, problem in found], [line for line, _ in found]) from error


def validate(raw: Mapping[str, Any], *, source: str = "policy") -> Policy:
    """A checked Policy from its file's content as a mapping; raises PolicyError that lists every problem."""
    from mlt.switch_configs.semantics import require_sound

    policy = _policy_of(dict(raw), source)
    require_sound(policy, source=source)
    return policy


def _explain(problem: Any) -> str:
    where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in problem["loc"]).lstrip(".")
    message = expectation(problem)
    if problem["type"] == "missing":
        return f"{where or 'policy'}: {message}"
    if problem["type"] == "extra_forbidden" and where.startswith("control."):
        message += "; the control class has no RED and no limit, its packets are never dropped early"
    return f"{where or 'policy'}: {message}{given(problem['input'])}"


def load(path: str | Path) -> Policy:
    """Read and check a policy file; raises PolicyError listing every problem it found."""
    from mlt.switch_configs.semantics import require_sound

    source = str(path)
    try:
        text = read_text(path)
    except UnreadableError as error:
        raise PolicyError(source, [f"cannot be read: {error.reason}"]) from error
    policy = parse(text, source=source)
    require_sound(policy, source=source)
    return policy


def dump(policy: Policy) -> str:
    """YAML text that ``parse`` reads back into an equal policy."""
    body = policy.model_dump(mode="json")
    return yaml.safe_dump(body, sort_keys=False, allow_unicode=True, width=120)


def json_schema() -> dict[str, Any]:
    """JSON schema of the file, for editors."""
    return Policy.model_json_schema()
