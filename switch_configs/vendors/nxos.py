"""Cisco NX-OS (Nexus 9000, eight queues), as CLI text.

Syntax: public configurations and the NX-OS YANG model 9.3.1, which has separate thresholds for ECN-capable packets
(``RandDet-items``) and for the others (``RandDetNonEcn-items``): both are written, or only one half would act.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import ClassVar

from mlt.switch_configs.behaviour import Behaviour, PortBehaviour, RandomDetect
from mlt.switch_configs.capabilities import Capabilities, Feature, Support
from mlt.switch_configs.counters import QueueCounters, integer, merge
from mlt.switch_configs.errors import invalid_thresholds
from mlt.switch_configs.plan import Plan, PlannedQueue
from mlt.switch_configs.target import PortBuilder, Procedure, Reading, Target, Unconfirmed

KB = 1024
_DETECT = re.compile(
    r"random-detect (non-ecn )?minimum-threshold (\d+) kbytes maximum-threshold (\d+) kbytes "
    r"drop-probability (\d+)(?: weight 0)?( ecn)?"
)


class Nxos(Target):
    """Class maps by DSCP, a queuing policy over c-out-8q-q7 (first) .. c-out-8q-q-default (last)."""

    name: ClassVar[str] = "nxos"
    title: ClassVar[str] = "Cisco NX-OS (Nexus 9000, 8 queues)"
    comment: ClassVar[str] = "!"
    capabilities: ClassVar[Capabilities] = Capabilities(
        threshold_unit_bytes=KB,
        limit_unit_bytes=KB,
        step_gap_bytes=KB,
        above_max_ect="mark",
        above_max_source="third-party text only",
        support={
            Feature.SELECTIVE_DROP: Support(
                "unconfirmed", "separate ecn and non-ecn thresholds exist in the YANG model"
            ),
            Feature.STRICT_PRIORITY: Support("unconfirmed", "priority level 1..8 is in the model; seen with one level"),
            Feature.ECN_ON_STRICT: Support("unconfirmed", "random-detect on a priority class is in the model"),
            Feature.WEIGHTED: Support("yes", "bandwidth remaining percent"),
            Feature.QUEUE_LIMIT: Support("unconfirmed", "queue-limit in kbytes is in the model"),
            Feature.STEP_THRESHOLD: Support("yes", "a step of 1 kbyte"),
            Feature.FAIR: Support("no", "one scheduler level", "set default.sharing: weighted"),
        },
    )
    procedure: ClassVar[Procedure] = Procedure(
        apply=("checkpoint mlt-before", "configure terminal; paste this file"),
        verify=(
            "show policy-map interface PORT",
            "show queuing interface PORT",
            "clear queuing statistics   (UNCONFIRMED; before a measurement)",
        ),
        undo=(
            "configure terminal; paste the undo file (bindings go first, then policies, then classes)",
            "or, for whatever was configured before: rollback running-config checkpoint mlt-before  (UNCONFIRMED)",
        ),
        notes=("a policy on an interface replaces the one in 'system qos' there",),
    )
    counter_commands: ClassVar[tuple[str, ...]] = ("show queuing interface PORT",)
    unconfirmed: ClassVar[tuple[Unconfirmed, ...]] = (
        Unconfirmed(r"priority level [2-8]", "several strict levels, with random-detect on them"),
        Unconfirmed(r"random-detect non-ecn", "the CLI form of the non-ECN thresholds (the YANG model has them)"),
        Unconfirmed(r"queue-limit", "queue-limit together with shared buffer"),
    )

    qos_sections: ClassVar[re.Pattern[str]] = re.compile(r"class-map |policy-map |system qos$|qos |hardware qos ")
    qos_inside: ClassVar[re.Pattern[str]] = re.compile(r"service-policy |qos |priority-flow-control |queue-limit ")

    def native_port(self, label: str) -> str:
        return f"ethernet1/{label}" if label.isdigit() else label

    def render(self, plan: Plan) -> dict[str, str]:
        lines = []
        named = [queue for queue in plan.queues if queue.dscp]
        for queue in named:
            dscp = ",".join(str(value) for value in queue.dscp)
            lines += [f"class-map type qos match-any {plan.name}-{queue.name}", f"  match dscp {dscp}"]
        lines.append(f"policy-map type qos {plan.name}-in")
        for queue in named:
            lines += [f"  class {plan.name}-{queue.name}", f"    set qos-group {queue.number}"]
        lines += ["  class class-default", "    set qos-group 0", f"policy-map type queuing {plan.name}-out"]
        # A higher queue number has a lower level: level 1 is served first.
        top = plan.queues[0].number
        for queue in plan.queues:
            lines.append(f"  class type queuing {_class_name(queue)}")
            if queue.weight_percent is not None:
                lines.append(f"    bandwidth remaining percent {queue.weight_percent}")
            elif queue.role == "default":
                lines.append("    bandwidth remaining percent 100")
            else:
                lines.append(f"    priority level {top - queue.number + 1}")
            detect = queue.random_detect
            if detect is not None:
                thresholds = (
                    f"minimum-threshold {detect.min_bytes // KB} kbytes maximum-threshold {detect.max_bytes // KB} "
                    f"kbytes drop-probability {detect.probability_percent}"
                )
                lines += [f"    random-detect {thresholds} weight 0 ecn", f"    random-detect non-ecn {thresholds}"]
            if queue.limit_bytes is not None:
                lines.append(f"    queue-limit {queue.limit_bytes // KB} kbytes")
        for port in plan.ports:
            lines += [
                f"interface {port}",
                f"  service-policy type qos input {plan.name}-in",
                f"  service-policy type queuing output {plan.name}-out",
            ]
        return {"nxos.apply.txt": "\n".join(lines) + "\n"}

    def undo(self, plan: Plan) -> dict[str, str]:
        lines = []
        for port in plan.ports:
            lines += [
                f"interface {port}",
                f"  no service-policy type qos input {plan.name}-in",
                f"  no service-policy type queuing output {plan.name}-out",
            ]
        lines += [f"no policy-map type queuing {plan.name}-out", f"no policy-map type qos {plan.name}-in"]
        lines += [f"no class-map type qos match-any {plan.name}-{q.name}" for q in plan.queues if q.dscp]
        return {"nxos.undo.txt": "\n".join(lines) + "\n"}

    def parse(self, files: Mapping[str, str], reading: Reading | None = None) -> Behaviour:
        reading = reading or Reading()
        reader = _Reader(self, reading)
        self.take_lines(files, reading, reader.line)
        return reader.behaviour()

    def parse_counters(self, text: str) -> list[QueueCounters]:
        rows, port, queue = [], "", -1
        fields = {"Tx Pkts": "sent", "WRED/AFD Drop Pkts": "dropped_early", "WRED Drop Pkts": "dropped_early",
                  "WD & ECN Marked Pkts": "marked", "ECN Marked Pkts": "marked", "Tail Drop Pkts": "dropped_at_limit",
                  "Dropped Pkts": "dropped_at_limit"}  # fmt: skip
        for line in text.splitlines():
            if match := re.search(r"queuing for (\S+)", line, re.IGNORECASE):
                port = match[1]
            elif match := re.search(r"QOS GROUP (\d)", line):
                queue = int(match[1])
            elif queue >= 0 and line.strip().startswith("|"):
                cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
                if cells[0] in fields and len(cells) > 1:
                    rows.append(QueueCounters(port=port, queue=queue, **{fields[cells[0]]: integer(cells[1])}))
        return merge(rows)


class _Reader:
    """Reads class maps, policies and bindings, then joins them; rejects dangling references."""

    def __init__(self, target: Nxos, reading: Reading) -> None:
        self.target = target
        self.reading = reading
        self.interfaces: list[str] = []
        self.common: dict[str, str] = {}
        self.classes: dict[str, tuple[int, ...]] = {}
        self.groups: dict[str, dict[str, int]] = {}
        self.queuing: dict[str, PortBuilder] = {}
        self.levels: dict[str, dict[int, int]] = {}
        self.remaining: dict[str, dict[int, int]] = {}
        self.bound: dict[str, dict[str, str]] = {}
        self.section: tuple[str, str] = ("", "")
        self.inner = ""

    def line(self, where: str, line: str) -> None:
        words = line.strip()
        if not line.startswith(" "):
            self._open(where, words)
        elif self.section[0] == "class" and (match := re.fullmatch(r"match dscp ([\d,-]+)", words)):
            self.classes[self.section[1]] = (*self.classes.get(self.section[1], ()), *_numbers(match[1]))
        elif self.section[0] == "in" and (match := re.fullmatch(r"class (?:type qos )?(\S+)", words)):
            self.inner = match[1]
        elif self.section[0] == "in" and (match := re.fullmatch(r"set qos-group (\d)", words)):
            self.groups[self.section[1]][self.inner] = int(match[1])
        elif self.section[0] == "out" and (
            match := re.fullmatch(r"class type queuing c-out-(?:8q-)?q(-default|\d)", words)
        ):
            self.inner = "0" if match[1] == "-default" else match[1]
            self.queuing[self.section[1]].present.add(int(self.inner))
        elif self.section[0] == "out":
            self._queue(where, words)
        elif self.section[0] == "ignored":
            self.reading.skipped += 1
        elif self.section[0] in ("interface", "system") and (
            match := re.fullmatch(r"service-policy type (qos input|queuing output) (\S+)", words)
        ):
            binding = self.common if self.section[0] == "system" else self.bound.setdefault(self.section[1], {})
            binding[match[1].split()[0]] = match[2]
        else:
            raise self.target.fail(where, f"not a command this target writes: {words!r}")

    def _open(self, where: str, words: str) -> None:
        if match := re.fullmatch(r"class-map type qos match-(?:any|all) (\S+)", words):
            self.section = ("class", match[1])
        elif match := re.fullmatch(r"policy-map type qos (\S+)", words):
            self.section = ("in", match[1])
            self.groups[match[1]] = {}
        elif match := re.fullmatch(r"policy-map type queuing (\S+)", words):
            self.section = ("out", match[1])
            self.queuing[match[1]] = PortBuilder()
            self.levels[match[1]], self.remaining[match[1]] = {}, {}
        elif match := re.fullmatch(r"interface (\S+)", words):
            self.section = ("interface", self.reading.name(match[1]))
            self.interfaces.append(self.section[1])
        elif words == "system qos":
            self.section = ("system", "")
        elif not self.reading.strict and re.match(
            r"(class|policy)-map type (network-qos|queuing|control-plane)", words
        ):
            self.section = ("ignored", "")
        else:
            raise self.target.fail(where, f"not a command this target writes: {words!r}")

    def _queue(self, where: str, words: str) -> None:
        name, queue = self.section[1], int(self.inner or -1)
        built = self.queuing[name]
        if match := re.fullmatch(r"priority level ([1-8])", words):
            self.levels[name][queue] = int(match[1])
        elif match := re.fullmatch(r"bandwidth remaining percent (\d+)", words):
            self.remaining[name][queue] = int(match[1])
        elif match := re.fullmatch(r"queue-limit (\d+) kbytes", words):
            built.limits[queue] = int(match[1]) * KB
        elif match := re.fullmatch(r"queue-limit (dynamic|percent) (\d+)", words):
            built.dynamic_limits[queue] = f"{match[1]} {match[2]}"
            self.reading.kept.append(f"policy-map {name} queue {queue}: queue-limit {built.dynamic_limits[queue]}")
        elif match := _DETECT.fullmatch(words):
            low, high, chance = int(match[2]) * KB, int(match[3]) * KB, int(match[4])
            if low > high or not 0 < chance <= 100:
                raise self.target.fail(where, invalid_thresholds(low, high, chance))
            known = built.random_detect.get(queue)
            if known is not None and (known.min_bytes, known.max_bytes) != (low, high):
                raise self.target.fail(where, "ecn and non-ecn thresholds differ: not one S for both kinds")
            built.random_detect[queue] = RandomDetect(
                min_bytes=low,
                max_bytes=high,
                probability_percent=chance,
                mark_ect=(known is not None and known.mark_ect) or match[5] is not None,
                drop_not_ect=(known is not None and known.drop_not_ect) or match[1] is not None,
            )
        else:
            raise self.target.fail(where, f"not a command this target writes: {words!r}")

    def behaviour(self) -> Behaviour:
        result = {}
        for port in self.interfaces if not self.reading.strict else self.bound:
            if self.reading.wants(port):
                built = self._port(port, {**self.common, **self.bound.get(port, {})})
                result[port] = PortBuilder().build() if built is None else built
        return result

    def _port(self, port: str, policies: dict[str, str]) -> PortBehaviour | None:
        where = f"interface {port}"
        if policies.get("qos") not in self.groups or policies.get("queuing") not in self.queuing:
            if policies or self.reading.strict:
                what = f"needs both policies, and defined ones; has {policies}"
                self.reading.unknown(self.target.fail(where, what))
            return None
        out = policies["queuing"]
        built = self.queuing[out]
        built.dscp = {}
        for class_name, group in self.groups[policies["qos"]].items():
            if class_name == "class-default":
                continue
            if class_name not in self.classes:
                self.reading.unknown(self.target.fail(where, f"class {class_name!r} matches no dscp or is not defined"))
            for dscp in self.classes.get(class_name, ()):
                if dscp > 63 or dscp in built.dscp:
                    self.reading.unknown(self.target.fail(where, f"dscp {dscp} is out of range or matched twice"))
                built.dscp[dscp] = group
        levels = [level for _, level in sorted(self.levels[out].items(), reverse=True)]
        if levels != sorted(set(levels)):
            what = f"priority levels {levels} do not fall with the queue number"
            self.reading.unknown(self.target.fail(f"policy-map {out}", what))
        # A single class with the remaining bandwidth is simply served last.
        if len(self.remaining[out]) > 1:
            built.weights = {queue: share for queue, share in self.remaining[out].items() if share}
        return built.build(default_queue=self.groups[policies["qos"]].get("class-default", 0))


def _numbers(text: str) -> tuple[int, ...]:
    """``"8-10,46"`` -> 8, 9, 10, 46."""
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return tuple(found)


def _class_name(queue: PlannedQueue) -> str:
    return "c-out-8q-q-default" if queue.number == 0 else f"c-out-8q-q{queue.number}"


TARGET = Nxos()
