"""Juniper Junos on QFX, as ``set`` lines.

Syntax: Junos 24.4R1 YANG. Not equivalent to the other targets: fill levels are whole percent of the queue's own memory,
and one ECN page advises against ECN on strict-high queues. The action of an ECN queue on Not-ECT packets and the max
number of strict queues depend on the model (``platforms``). Without a platform nothing is written.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import ClassVar

from mlt.switch_configs.behaviour import Behaviour, PortBehaviour, RandomDetect
from mlt.switch_configs.capabilities import Capabilities, Feature, Support
from mlt.switch_configs.counters import QueueCounters, integer, merge
from mlt.switch_configs.errors import ParseError
from mlt.switch_configs.plan import Plan
from mlt.switch_configs.policy import DSCP_NAMES
from mlt.switch_configs.target import PortBuilder, Procedure, Reading, Target, Unconfirmed, code_lines

OWN = re.compile(r"^((?:schedulers|scheduler-maps|drop-profiles|classifiers dscp|forwarding-classes class) \S+) .*$")
PREFIX = "set class-of-service "
BASIS = re.compile(r"percent of a queue's memory of (\d+) bytes")


class Junos(Target):
    """Forwarding class per queue, drop profile and scheduler per class, one scheduler map bound to the ports."""

    name: ClassVar[str] = "junos"
    title: ClassVar[str] = "Juniper Junos (QFX)"
    comment: ClassVar[str] = "#"
    whole: ClassVar[str] = "what 'show configuration' prints, with or without '| display set'"
    capabilities: ClassVar[Capabilities] = Capabilities(
        threshold_unit_bytes=None,
        above_max_ect="unknown",
        above_max_source="Juniper's pages describe marking only between the fill levels",
        support={
            Feature.SELECTIVE_DROP: Support(
                "unconfirmed", "one page says the profile drops Not-ECT, another that only a full buffer does"
            ),
            Feature.STRICT_PRIORITY: Support("unconfirmed", "several strict-high queues at once"),
            Feature.ECN_ON_STRICT: Support(
                "no", "Juniper's ECN page advises against ECN on strict-high queues", "set default.sharing: weighted"
            ),
            Feature.WEIGHTED: Support("yes", "transmit-rate percent"),
            Feature.STEP_THRESHOLD: Support(
                "no", "ECT above the top fill level is undocumented, so the ramp ends at L"
            ),
            Feature.QUEUE_LIMIT: Support("no", "buffer-size reserves a share; a queue may grow into the shared pool"),
            Feature.FAIR: Support("no", "no two-level scheduling is written here", "set default.sharing: weighted"),
        },
    )
    procedure: ClassVar[Procedure] = Procedure(
        apply=(
            "configure; load set terminal; paste this file; show | compare; commit confirmed 5",
            "verify, then: commit",
        ),
        verify=("show class-of-service interface PORT", "show interfaces queue PORT"),
        undo=(
            "configure; load set terminal; paste the undo file; commit",
            "or, for whatever was configured before: rollback 1; commit  (UNCONFIRMED)",
        ),
        notes=(
            "not equivalent to byte-exact targets: read ECN-CE and drops under load before trusting it",
            "fill levels are percent of switch.queue_memory_bytes; check what one queue may hold on this device first",
        ),
    )
    counter_commands: ClassVar[tuple[str, ...]] = ("show interfaces queue PORT",)
    unconfirmed: ClassVar[tuple[Unconfirmed, ...]] = (
        Unconfirmed(r"explicit-congestion-notification", "what this queue does with Not-ECT packets (see the notes)"),
    )

    @property
    def tail_drops_not_ect(self) -> bool:
        """True if an ECN queue of this platform drops Not-ECT packets only when the queue is full."""
        fact = self.platform.facts.not_ect
        return fact is not None and fact.value == "tail-drop"

    def native_port(self, label: str) -> str:
        return f"et-0/0/{int(label) - 1}" if label.isdigit() else label

    def lines(self, plan: Plan) -> list[str]:
        name, memory = plan.name, plan.policy.switch.queue_memory_bytes or 0
        table = plan.dscp_to_queue()
        lines = []
        for queue in plan.queues:
            forwarding = f"{name}-{queue.name}"
            points = " ".join(f"{dscp:06b}" for dscp in range(len(table)) if table[dscp] == queue.number)
            lines.append(f"forwarding-classes class {forwarding} queue-num {queue.number}")
            lines.append(
                f"classifiers dscp {name} forwarding-class {forwarding} loss-priority low code-points [ {points} ]"
            )
            scheduler = f"schedulers {forwarding}"
            if queue.weight_percent is not None:
                lines += [f"{scheduler} transmit-rate percent {queue.weight_percent}", f"{scheduler} priority low"]
            elif queue.role == "default":
                lines.append(f"{scheduler} priority low")
            else:
                lines.append(f"{scheduler} priority strict-high")
            detect = queue.random_detect
            if detect is not None:
                low, high = (round(value * 100 / memory) for value in (detect.min_bytes, detect.max_bytes))
                lines.append(
                    f"drop-profiles {forwarding} interpolate fill-level {low} fill-level {high} "
                    f"drop-probability 0 drop-probability {detect.probability_percent}"
                )
                lines += [
                    f"{scheduler} drop-profile-map loss-priority any protocol any drop-profile {forwarding}",
                    f"{scheduler} explicit-congestion-notification",
                ]
            lines.append(f"scheduler-maps {name} forwarding-class {forwarding} scheduler {forwarding}")
        for port in plan.ports:
            lines += [f"interfaces {port} scheduler-map {name}", f"interfaces {port} unit 0 classifiers dscp {name}"]
        return lines

    def render(self, plan: Plan) -> dict[str, str]:
        basis = f"# fill levels are percent of a queue's memory of {plan.policy.switch.queue_memory_bytes} bytes"
        return {"junos.apply.set": "\n".join([basis, *(PREFIX + line for line in self.lines(plan))]) + "\n"}

    def undo(self, plan: Plan) -> dict[str, str]:
        # Delete mlt's entries as a whole: without their last statement they would stay as empty entries.
        whole = [OWN.sub(r"\1", line) for line in self.lines(plan)]
        lines = ["delete class-of-service " + line for line in dict.fromkeys(reversed(whole))]
        return {"junos.undo.set": "\n".join(lines) + "\n"}

    def parse(self, files: Mapping[str, str], reading: Reading | None = None) -> Behaviour:
        reading = reading or Reading()
        reader = _Reader(self, reading)
        for name, text in files.items():
            basis = BASIS.search(text)
            reader.memory = int(basis[1]) if basis else reading.queue_memory_bytes or 0
            if not reader.memory:
                raise self.fail(name, "the comment naming the queue's memory is gone: percent cannot become bytes")
            lines = code_lines(text, self.comment)
            for number, line in _flattened(lines) if "{" in text else lines:
                where = f"{name}:{number}"
                if not line.startswith(PREFIX):
                    if port := re.match(r"set interfaces (\S+) ", line):
                        reader.interfaces.add(port[1])
                    reading.foreign(self.fail(where, f"not a class-of-service line: {line!r}"))
                    continue
                try:
                    reader.line(where, line.removeprefix(PREFIX))
                except ParseError as error:
                    reading.unknown(error)
        return reader.behaviour()

    def parse_counters(self, text: str) -> list[QueueCounters]:
        rows, port, queue, part = [], "", -1, ""
        fields = {"Packets": "sent", "Tail-dropped packets": "dropped_at_limit", "RED-dropped packets": "dropped_early",
                  "ECN-CE packets": "marked"}  # fmt: skip
        for line in text.splitlines():
            if match := re.match(r"Physical interface: (\S+?),", line):
                port = match[1]
            elif match := re.match(r"\s*Queue(?: number)?: (\d)", line):
                queue = int(match[1])
            elif match := re.match(r"\s*(Queued|Transmitted):\s*$", line):
                part = match[1]
            elif (
                queue >= 0
                and (match := re.match(r"\s*([A-Za-z-]+(?: packets)?)\s*:\s+(\d+)", line))
                and match[1] in fields
                and (match[1] != "Packets" or part == "Transmitted")
            ):
                rows.append(QueueCounters(port=port, queue=queue, **{fields[match[1]]: integer(match[2])}))
        return merge(rows)


class _Reader:
    """Collects the class-of-service statements and joins them per interface."""

    def __init__(self, target: Junos, reading: Reading) -> None:
        self.target, self.reading = target, reading
        self.interfaces: set[str] = set()
        self.levels: dict[str, dict[str, list[int]]] = {}
        self.memory = 0
        self.queue_of: dict[str, int] = {}
        self.points: dict[str, dict[int, str]] = {}
        self.profiles: dict[str, RandomDetect] = {}
        self.priority: dict[str, str] = {}
        self.rate: dict[str, int] = {}
        self.profile_of: dict[str, str] = {}
        self.ecn: set[str] = set()
        self.maps: dict[str, dict[str, str]] = {}
        self.bound: dict[str, dict[str, str]] = {}

    def line(self, where: str, words: str) -> None:
        name = r"(\S+)"
        if m := re.fullmatch(rf"forwarding-classes class {name} queue-num ([0-7])", words):
            self.queue_of[m[1]] = int(m[2])
        elif m := re.fullmatch(
            rf"classifiers dscp {name} forwarding-class {name} loss-priority (?:low|medium-low|high|medium-high) "
            r"code-points (?:\[ )?([\w ]+?)(?: \])?",
            words,
        ):
            for bits in m[3].split():
                dscp = _code_point(bits)
                if dscp is None or dscp in self.points.setdefault(m[1], {}):
                    raise self.target.fail(where, f"code point {bits} is malformed or mapped twice")
                self.points[m[1]][dscp] = m[2]
        elif m := re.fullmatch(
            rf"drop-profiles {name} interpolate ((?:(?:fill-level|drop-probability) [\[\]\d ]+)+)", words
        ):
            # "show | display set" writes each number on a separate line.
            for kind, numbers in re.findall(r"(fill-level|drop-probability) ([\[\]\d ]+)", m[2]):
                found = self.levels.setdefault(m[1], {}).setdefault(kind, [])
                found += [int(number) for number in re.findall(r"\d+", numbers)]
        elif m := re.fullmatch(rf"schedulers {name} priority (strict-high|low)", words):
            self.priority[m[1]] = m[2]
        elif m := re.fullmatch(rf"schedulers {name} transmit-rate percent (\d+)", words):
            self.rate[m[1]] = int(m[2])
        elif m := re.fullmatch(
            rf"schedulers {name} drop-profile-map loss-priority any protocol any drop-profile {name}", words
        ):
            self.profile_of[m[1]] = m[2]
        elif m := re.fullmatch(rf"schedulers {name} explicit-congestion-notification", words):
            self.ecn.add(m[1])
        elif m := re.fullmatch(rf"scheduler-maps {name} forwarding-class {name} scheduler {name}", words):
            self.maps.setdefault(m[1], {})[m[2]] = m[3]
        elif m := re.fullmatch(rf"interfaces {name} scheduler-map {name}", words):
            self.bound.setdefault(m[1], {})["map"] = m[2]
        elif m := re.fullmatch(rf"interfaces {name} unit 0 classifiers dscp {name}", words):
            self.bound.setdefault(m[1], {})["classifier"] = m[2]
        else:
            raise self.target.fail(where, f"not a statement this target writes: {words!r}")

    def behaviour(self) -> Behaviour:
        for name in self.levels:
            self._profile(name)
        result = {port: PortBuilder().build() for port in sorted(self.interfaces) if self.reading.wants(port)}
        for port, binding in self.bound.items():
            if self.reading.wants(port):
                try:
                    result[port] = self._port(f"interfaces {port}", binding)
                except ParseError as error:
                    self.reading.unknown(error)
                    result[port] = PortBuilder().build()
        return result

    def _profile(self, name: str) -> None:
        fill, chance = (self.levels[name].get(kind, []) for kind in ("fill-level", "drop-probability"))
        where = f"drop-profiles {name}"
        if len(fill) != 2 or len(chance) != 2 or chance[0] != 0:
            what = f"fill levels {fill} at {chance}% are not two points from 0%"
            self.reading.unknown(self.target.fail(where, what))
        elif not 0 < fill[0] <= fill[1] <= 100 or not 0 < chance[1] <= 100:
            what = f"invalid fill levels {fill} at {chance}%: need 0 < first <= second and 0 < probability, up to 100"
            self.reading.unknown(self.target.fail(where, what))
        else:
            self.profiles[name] = RandomDetect(
                min_bytes=round(fill[0] * self.memory / 100),
                max_bytes=round(fill[1] * self.memory / 100),
                probability_percent=chance[1],
                mark_ect=False,
                drop_not_ect=True,
            )

    def _port(self, where: str, binding: dict[str, str]) -> PortBehaviour:
        if binding.get("map") not in self.maps or binding.get("classifier") not in self.points:
            raise self.target.fail(where, f"needs a defined scheduler-map and classifier; has {binding}")
        built = PortBuilder()
        for dscp, forwarding in self.points[binding["classifier"]].items():
            if forwarding not in self.queue_of:
                raise self.target.fail(where, f"forwarding class {forwarding!r} is not defined")
            built.dscp[dscp] = self.queue_of[forwarding]
        for forwarding, scheduler in self.maps[binding["map"]].items():
            self._scheduler(where, built, self.queue_of.get(forwarding, -1), scheduler)
        if -1 in built.present:
            raise self.target.fail(where, "the scheduler map names a forwarding class that is not defined")
        return built.build()

    def _scheduler(self, where: str, built: PortBuilder, queue: int, scheduler: str) -> None:
        built.present.add(queue)
        if scheduler not in self.priority:
            raise self.target.fail(where, f"scheduler {scheduler!r} is not defined")
        if scheduler in self.rate:
            built.weights[queue] = self.rate[scheduler]
        elif self.priority[scheduler] == "low" and queue != min(self.queue_of.values()):
            raise self.target.fail(where, f"scheduler {scheduler!r} is neither strict nor has it a rate")
        profile = self.profile_of.get(scheduler)
        if profile is None:
            return
        if profile not in self.profiles:
            raise self.target.fail(where, f"drop profile {profile!r} is not defined")
        known = self.profiles[profile]
        built.random_detect[queue] = RandomDetect(
            min_bytes=known.min_bytes,
            max_bytes=known.max_bytes,
            probability_percent=known.probability_percent,
            mark_ect=scheduler in self.ecn,
            drop_not_ect=scheduler not in self.ecn or not self.target.tail_drops_not_ect,
        )


def _code_point(text: str) -> int | None:
    """``"101110"`` or one of Junos's aliases: 46; None for anything else."""
    if re.fullmatch(r"[01]{6}", text):
        return int(text, 2)
    return {"nc1": 48, "nc2": 56}.get(text, DSCP_NAMES.get(text))


def _flattened(lines: list[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """``show configuration`` with its braces as ``set`` lines."""
    path: list[str] = []
    for number, line in lines:
        words = line.strip()
        if words.startswith(("/*", "##")):
            continue
        if words.endswith("{"):
            path.append(words[:-1].strip())
        elif words == "}":
            path = path[:-1]
        else:
            yield number, " ".join(["set", *path, words.rstrip(";")])


TARGET = Junos()
