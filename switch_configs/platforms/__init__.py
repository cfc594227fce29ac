"""Facts about switch models, in data files, each with its source.

A target is ``system[/release][@platform]``, for example ``sonic/202511@mlnx-sn2700`` (``parse_spec``). The facts of a
platform come from ``facts/<system>.yaml`` and, if it names an ASIC, from ``facts/asics.yaml``. Facts missing from both
come from the system's ``unknown`` entry, the most restrictive values, which unknown platforms use too.

Units: bytes, packets in cells of ``cell_bytes``. Absent on purpose: syntax (see ``vendors``) and decisions (``plan``).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.resources import files
from typing import Any, Generic, Literal, TypeVar

import yaml
from mlt.switch_configs.errors import SwitchConfigError, TargetError
from pydantic import BaseModel, ConfigDict, Field, ValidationError

Value = TypeVar("Value")
NotEct = Literal["drop", "tail-drop", "undocumented"]
EctAboveMax = Literal["mark", "drop", "unknown"]
_SPEC = re.compile(r"(?P<system>[a-z][a-z0-9-]*)(?:/(?P<release>[A-Za-z0-9._-]+))?(?:@(?P<platform>[A-Za-z0-9._-]+))?")


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Fact(_Strict, Generic[Value]):
    """One statement about a device. ``confirmed`` False: the value is the restrictive one, without a document."""

    value: Value
    source: str = Field(min_length=8)
    confirmed: bool = True


class PortGroup(_Strict):
    """``count`` consecutive front-panel ports, each of ``lanes`` serial lanes; SONiC's numbers rise by ``step``."""

    count: int = Field(gt=0)
    lanes: int = Field(gt=0)
    step: int | None = None

    @property
    def apart(self) -> int:
        """Difference between SONiC's numbers of two neighbouring ports."""
        return self.lanes if self.step is None else self.step


class Pool(_Strict):
    """One shared buffer of the device in its factory configuration."""

    name: str
    direction: Literal["ingress", "egress", "both"]
    mode: Literal["static", "dynamic"]
    memory_percent: int | None = None


class Facts(_Strict):
    """Every fact that a platform may state; None: not stated here.

    ``red_step_cells`` and ``red_rounding``: the device rounds a RED threshold to a multiple of that many cells.
    ``strict_queues``: max number of queues with strict priority.
    ``not_ect``: action above the threshold on packets that are not ECN-capable, on a queue with ECN.
    ``threshold_of``: unit of a threshold: bytes, or percent of the queue's own memory.
    ``instead``: advice if the platform cannot serve the paper's policy.
    """

    asic: Fact[str] | None = None
    ports: Fact[tuple[PortGroup, ...]] | None = None
    cell_bytes: Fact[int] | None = None
    red_step_cells: Fact[int] | None = None
    red_rounding: Fact[Literal["up", "nearest"]] | None = None
    buffer_bytes: Fact[int] | None = None
    default_pools: Fact[tuple[Pool, ...]] | None = None
    queues: Fact[int] | None = None
    strict_queues: Fact[int] | None = None
    not_ect: Fact[NotEct] | None = None
    ect_above_max: Fact[EctAboveMax] | None = None
    threshold_of: Fact[Literal["bytes", "queue-percent"]] | None = None
    offload: Fact[Literal["none", "prio-red"]] | None = None
    updater_asic: Fact[str] | None = None
    instead: Fact[str] | None = None


class _PlatformEntry(_Strict):
    title: str
    asic: str | None = None
    aliases: tuple[str, ...] = ()
    facts: Facts = Facts()


class _SystemFile(_Strict):
    """``needs_platform``: reason to reject a configuration without a named platform; empty: none.

    ``default``: platform if none is named (a system with one ordinary kind of device).
    ``no_platforms``: reason why no model is described.
    """

    needs_platform: str = ""
    no_platforms: str = ""
    default: str | None = None
    first_release: Fact[str] | None = None
    unknown: _PlatformEntry
    platforms: dict[str, _PlatformEntry] = Field(default_factory=dict)


@dataclass(frozen=True)
class Spec:
    """A target as users write it: ``cumulus/5.9@sn3700``."""

    system: str
    release: str | None = None
    platform: str | None = None

    def __str__(self) -> str:
        return (
            self.system + (f"/{self.release}" if self.release else "") + (f"@{self.platform}" if self.platform else "")
        )


def parse_spec(text: str) -> Spec:
    """``system[/release][@platform]``; raises SwitchConfigError."""
    match = _SPEC.fullmatch(text)
    if match is None:
        raise TargetError(f"target {text!r}: write it as system[/release][@platform], like sonic/202511@mlnx-sn2700")
    return Spec(**match.groupdict())


@dataclass(frozen=True, kw_only=True)
class Platform:
    """One switch model under one system. ``known`` False: no file has it, its facts are the most restrictive ones."""

    system: str
    name: str
    title: str
    known: bool
    facts: Facts
    needs_platform: str = ""
    asked: str | None = None

    @property
    def port_count(self) -> int | None:
        """Front-panel ports, None where the model is not known."""
        return None if self.facts.ports is None else sum(group.count for group in self.facts.ports.value)

    def first_lane(self, port: int) -> int | None:
        """The number of the first lane of front-panel port ``port`` (from 1), None where the model is not known.

        Beyond the last port the last group's numbering continues, so that such names can be recognised.
        """
        if self.facts.ports is None:
            return None
        lane, left = 0, port - 1
        groups = self.facts.ports.value
        for group in groups[:-1]:
            if left < group.count:
                return lane + left * group.apart
            lane, left = lane + group.count * group.apart, left - group.count
        return lane + left * groups[-1].apart

    def lanes(self, port: int) -> int | None:
        """The serial lanes of front-panel port ``port`` (from 1), None where the model or the port is not known."""
        left = port - 1
        for group in () if self.facts.ports is None else self.facts.ports.value:
            if left < group.count:
                return group.lanes
            left -= group.count
        return None

    @property
    def red_unit_bytes(self) -> int:
        """Unit of the device's rounding of a RED threshold; 1 if it accepts every byte."""
        cell, step = self.facts.cell_bytes, self.facts.red_step_cells
        return (1 if cell is None else cell.value) * (1 if step is None else step.value)

    @property
    def red_unit(self) -> str:
        """The unit as text, with its source."""
        cell = self.facts.cell_bytes
        how = "RED of" if cell is None or cell.confirmed else "assumed of"
        why = "" if cell is None or cell.confirmed else f": {cell.source}"
        return f"units of {self.red_unit_bytes} B ({how} {self.title}{why})"

    def red_bytes(self, value: int) -> int:
        """``value`` as rounded by the device's RED."""
        unit = self.red_unit_bytes
        if self.facts.red_rounding is not None and self.facts.red_rounding.value == "nearest":
            return max(1, round(value / unit)) * unit
        return math.ceil(value / unit) * unit

    def notes(self) -> tuple[str, ...]:
        """Remarks on the source of these facts; empty for a known model."""
        if self.known:
            return ()
        if self.asked is not None:
            known = f" (known: {', '.join(platforms(self.system))})" if platforms(self.system) else ""
            what = f"platform {self.asked!r} is not known for {self.system}{known}"
            return (f"{what}: its most restrictive facts are used",)
        if why_none(self.system):
            return (
                f"no model of {self.system} is described ('mlt switch facts {self.system}' says why): cautious facts",
            )
        return (f"no platform given: {self.system}'s most restrictive facts are used (write {self.system}@PLATFORM)",)

    def statements(self) -> tuple[tuple[str, Fact[Any]], ...]:
        """(name, fact) of every stated fact, in the order of ``Facts``."""
        found = ((name, getattr(self.facts, name)) for name in Facts.model_fields)
        return tuple((name, fact) for name, fact in found if fact is not None)


def _read(name: str) -> Any:
    return yaml.safe_load((files(__package__) / "facts" / f"{name}.yaml").read_text(encoding="utf-8"))


@lru_cache(maxsize=1)
def asics() -> Mapping[str, Facts]:
    """ASIC -> its facts, shared by every system that runs on it."""
    try:
        return {name: Facts.model_validate(entry) for name, entry in _read("asics").items()}
    except ValidationError as error:
        raise SwitchConfigError(f"platform facts asics.yaml: {error}") from error


@cache
def _system(system: str) -> _SystemFile | None:
    try:
        return _SystemFile.model_validate(_read(system))
    except FileNotFoundError:
        return None
    except ValidationError as error:
        raise SwitchConfigError(f"platform facts {system}.yaml: {error}") from error


def _facts(own: Facts, asic: str | None, unknown: Facts | None) -> Facts:
    """``own`` first, then its ASIC's, then the system's most restrictive ones (but never another model's ports)."""
    layers = [own]
    if asic is not None:
        layers.append(asics()[asic])
    if unknown is not None:
        layers.append(unknown)
    merged: dict[str, Any] = {}
    for name in Facts.model_fields:
        merged[name] = next((fact for layer in layers if (fact := getattr(layer, name)) is not None), None)
    return Facts(**merged)


def _of_another(entry: _PlatformEntry, facts: Facts) -> Facts:
    """The ``unknown`` entry's facts for a model; its ASIC's behaviour is not documented for the model."""
    if entry.asic is None:
        return facts
    name = asics()[entry.asic].asic
    of = entry.asic if name is None else name.value
    marked: dict[str, Any] = {}
    for key in Facts.model_fields:
        fact = getattr(facts, key)
        if fact is not None and getattr(entry.facts, key) is None:
            why = f"not documented for this model; the cautious value, of {of}: {fact.source}"
            fact = fact.model_copy(update={"source": why, "confirmed": False})
        marked[key] = fact
    return Facts(**marked)


def platforms(system: str) -> tuple[str, ...]:
    """The names of the models that ``system``'s file knows."""
    known = _system(system)
    return () if known is None else tuple(known.platforms)


def why_none(system: str) -> str:
    """Why ``system``'s file describes no model; empty if it does."""
    known = _system(system)
    return "no facts file" if known is None else known.no_platforms


def find(system: str, name: str | None = None) -> Platform:
    """The facts of one model; an unknown name, or none, gives the system's most restrictive facts (``known`` False)."""
    file = _system(system)
    if file is None:
        return Platform(system=system, name="any", title="any", known=name is None, facts=Facts(), asked=name)
    unknown = _facts(file.unknown.facts, file.unknown.asic, None)
    wanted = (name or file.default or "").lower()
    for key, entry in file.platforms.items():
        if wanted and wanted in (key, *(alias.lower() for alias in entry.aliases)):
            facts = _facts(entry.facts, entry.asic, _of_another(file.unknown, unknown))
            return Platform(system=system, name=key, title=entry.title, known=True, facts=facts, asked=name)
    return Platform(
        system=system,
        name="unknown",
        title=file.unknown.title,
        known=False,
        facts=unknown,
        needs_platform=file.needs_platform,
        asked=name,
    )


def first_release(system: str) -> Fact[str] | None:
    """The first release that accepts the vendor's syntax, if documented."""
    file = _system(system)
    return None if file is None else file.first_release
