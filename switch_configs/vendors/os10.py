"""Dell SmartFabric OS10: the target with the least documentation; only mlt's own parser validates it.

Syntax: public configurations. Behaviour: a Dell engineer's report on netdev (2022-03-25: DCTCP saw no drops, cubic
did) and the OS9 manual (above the maximum every packet is dropped, as without ECN).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import ClassVar

from mlt.switch_configs.behaviour import Behaviour, RandomDetect
from mlt.switch_configs.capabilities import Capabilities, Feature, Support
from mlt.switch_configs.counters import COUNTS, QueueCounters, integer, merge
from mlt.switch_configs.errors import invalid_thresholds
from mlt.switch_configs.plan import Plan
from mlt.switch_configs.target import PortBuilder, Procedure, Reading, Target, Unconfirmed

KB = 1024
COLOURS = ("green", "yellow", "red")
_DETECT = re.compile(
    r"random-detect color (\w+) minimum-threshold (\d+) maximum-threshold (\d+) drop-probability (\d+)"
)


class Os10(Target):
    """wred profiles, a trust map, a queue map and an output policy bound to the ports."""

    name: ClassVar[str] = "os10"
    title: ClassVar[str] = "Dell SmartFabric OS10"
    comment: ClassVar[str] = "!"
    capabilities: ClassVar[Capabilities] = Capabilities(
        threshold_unit_bytes=KB,
        limit_unit_bytes=KB,
        above_max_ect="drop",
        above_max_source="OS9 manual",
        support={
            Feature.SELECTIVE_DROP: Support(
                "unconfirmed", "random-detect ecn marks ECT and drops the rest (one report)"
            ),
            Feature.STRICT_PRIORITY: Support("unconfirmed", "priority in several classes"),
            Feature.ECN_ON_STRICT: Support("unconfirmed", "random-detect in a priority class"),
            Feature.WEIGHTED: Support("unconfirmed", "bandwidth percent"),
            Feature.STEP_THRESHOLD: Support(
                "no",
                "above the maximum ECT is dropped too, so the maximum is L and Not-ECT drops on a ramp from S to L",
            ),
            Feature.QUEUE_LIMIT: Support("unconfirmed", "queue-limit thresh-mode static"),
            Feature.FAIR: Support("no", "one scheduler level", "set default.sharing: weighted"),
        },
    )
    procedure: ClassVar[Procedure] = Procedure(
        apply=("copy running-configuration config://mlt-before.xml", "configure terminal; paste this file"),
        verify=(
            "show qos maps type trust-map-dscp",
            "show policy-map type queuing",
            "show queuing statistics interface PORT",
            "clear qos statistics type queuing interface PORT  (before a measurement)",
        ),
        undo=(
            "configure terminal; paste the undo file",
            "or, for whatever was configured before: copy config://mlt-before.xml running-configuration (UNCONFIRMED)",
        ),
    )
    counts: ClassVar[frozenset[str]] = COUNTS - {"marked", "dropped_early"}
    unconfirmed: ClassVar[tuple[Unconfirmed, ...]] = (
        Unconfirmed(r"^trust dscp-map", "the body of a DSCP trust map"),
        Unconfirmed(r"^  random-detect mlt|^  random-detect \S+-q\d", "binding a named wred profile to a class"),
        Unconfirmed(r"^  priority", "priority in more than one class"),
        Unconfirmed(r"minimum-threshold", "thresholds in KB, and three colours in one profile"),
        Unconfirmed(r"queue-limit", "a static limit per queue, in KB"),
    )

    qos_sections: ClassVar[re.Pattern[str]] = re.compile(r"trust |qos-map |wred |class-map |policy-map |system qos$")
    qos_inside: ClassVar[re.Pattern[str]] = re.compile(r"trust-map |qos-map |service-policy ")

    def native_port(self, label: str) -> str:
        return f"ethernet1/1/{label}" if label.isdigit() else label

    def render(self, plan: Plan) -> dict[str, str]:
        name = plan.name
        lines = [f"trust dscp-map {name}"]
        table = plan.dscp_to_queue()
        for queue in reversed(plan.queues):
            points = ",".join(str(dscp) for dscp in range(len(table)) if table[dscp] == queue.number)
            lines.append(f" qos-group {queue.number} dscp {points}")
        lines.append(f"qos-map traffic-class {name}")
        lines += [f" queue {q.number} qos-group {q.number} type ucast" for q in reversed(plan.queues)]
        for queue in plan.queues:
            detect = queue.random_detect
            if detect is None:
                continue
            lines.append(f"wred {name}-q{queue.number}")
            lines += [
                f" random-detect color {colour} minimum-threshold {detect.min_bytes // KB} maximum-threshold "
                f"{detect.max_bytes // KB} drop-probability {detect.probability_percent}"
                for colour in COLOURS
            ]
            lines.append(" random-detect ecn")
        for queue in plan.queues:
            lines += [f"class-map type queuing {name}-c{queue.number}", f" match queue {queue.number}"]
        lines.append(f"policy-map type queuing {name}-out")
        for queue in plan.queues:
            lines.append(f" class {name}-c{queue.number}")
            if queue.weight_percent is not None:
                lines.append(f"  bandwidth percent {queue.weight_percent}")
            elif queue.role == "default":
                lines.append("  bandwidth percent 100")
            else:
                lines.append("  priority")
            if queue.random_detect is not None:
                lines.append(f"  random-detect {name}-q{queue.number}")
            if queue.limit_bytes is not None:
                lines.append(f"  queue-limit thresh-mode static {queue.limit_bytes // KB}")
        for port in plan.ports:
            lines += [
                f"interface {port}",
                f" trust-map dscp {name}",
                f" qos-map traffic-class {name}",
                f" service-policy output type queuing {name}-out",
            ]
        return {"os10.apply.txt": "\n".join(lines) + "\n"}

    def undo(self, plan: Plan) -> dict[str, str]:
        name, lines = plan.name, []
        for port in plan.ports:
            lines += [
                f"interface {port}",
                f" no service-policy output type queuing {name}-out",
                f" no qos-map traffic-class {name}",
                f" no trust-map dscp {name}",
            ]
        lines.append(f"no policy-map type queuing {name}-out")
        lines += [f"no class-map type queuing {name}-c{queue.number}" for queue in plan.queues]
        lines += [f"no wred {name}-q{queue.number}" for queue in plan.queues if queue.random_detect is not None]
        lines += [f"no qos-map traffic-class {name}", f"no trust dscp-map {name}"]
        return {"os10.undo.txt": "\n".join(lines) + "\n"}

    def parse(self, files: Mapping[str, str], reading: Reading | None = None) -> Behaviour:
        reading = reading or Reading()
        reader = _Reader(self)
        self.take_lines(files, reading, reader.line)
        return reader.behaviour()

    def parse_counters(self, text: str) -> list[QueueCounters]:
        rows, port, columns = [], "", []
        fields = {"Packets": "sent", "Dropped-Packets": "dropped_at_limit", "WRED-Drops": "dropped_early",
                  "ECN-Marked": "marked"}  # fmt: skip
        for line in text.splitlines():
            cells = line.split()
            if match := re.match(r"Interface (\S+)", line):
                port = match[1]
            elif cells[:1] == ["Queue"]:
                columns = cells
            elif columns and len(cells) == len(columns) and cells[0].isdigit():
                values = dict(zip(columns, cells, strict=True))
                counted = {name: integer(values[column]) for column, name in fields.items() if column in values}
                rows.append(QueueCounters(port=port, queue=int(cells[0]), **counted))
        return merge(rows)


class _Reader:
    """Reads sections by their first line; joins them per interface at the end."""

    def __init__(self, target: Os10) -> None:
        self.target = target
        self.section = ""
        self.inner = ""
        self.trust: dict[str, dict[int, int]] = {}
        self.queue_map: dict[str, dict[int, int]] = {}
        self.wred: dict[str, dict[str, tuple[int, int, int]]] = {}
        self.ecn: set[str] = set()
        self.matches: dict[str, int] = {}
        self.policies: dict[str, dict[str, dict[str, str]]] = {}
        self.bound: dict[str, dict[str, str]] = {}

    def line(self, where: str, line: str) -> None:
        words, name = line.strip(), self.section.split()[-1] if self.section else ""
        if not line.startswith(" "):
            self.section, self.inner = words, ""
            if words.startswith("policy-map type queuing "):
                self.policies[words.split()[-1]] = {}
            elif not re.match(
                r"(trust dscp-map|qos-map traffic-class|wred|class-map type queuing|interface) \S+$", words
            ):
                raise self.target.fail(where, f"not a command this target writes: {words!r}")
        elif self.section.startswith("trust ") and (m := re.fullmatch(r"qos-group (\d) dscp ([\d,]+)", words)):
            for dscp in map(int, m[2].split(",")):
                if dscp > 63 or dscp in self.trust.setdefault(name, {}):
                    raise self.target.fail(where, f"dscp {dscp} is out of range or mapped twice")
                self.trust[name][dscp] = int(m[1])
        elif self.section.startswith("qos-map ") and (
            m := re.fullmatch(r"queue (\d) qos-group (\d) type ucast", words)
        ):
            self.queue_map.setdefault(name, {})[int(m[2])] = int(m[1])
        elif self.section.startswith("wred "):
            self._wred(where, name, words)
        elif self.section.startswith("class-map ") and (m := re.fullmatch(r"match queue (\d)", words)):
            self.matches[name] = int(m[1])
        elif self.section.startswith("policy-map "):
            self._policy(where, name, words)
        elif self.section.startswith("interface ") and (
            m := re.fullmatch(
                r"(trust-map|qos-map|service-policy) (?:dscp|traffic-class|output type queuing) (\S+)", words
            )
        ):
            self.bound.setdefault(name, {})[m[1]] = m[2]
        else:
            raise self.target.fail(where, f"not a command this target writes: {words!r}")

    def _wred(self, where: str, name: str, words: str) -> None:
        if words == "random-detect ecn":
            self.ecn.add(name)
            return
        m = _DETECT.fullmatch(words)
        if m is None or m[1] not in COLOURS:
            raise self.target.fail(where, f"not a wred line this target writes: {words!r}")
        low, high, chance = int(m[2]) * KB, int(m[3]) * KB, int(m[4])
        if low > high or not 0 < chance <= 100:
            raise self.target.fail(where, invalid_thresholds(low, high, chance))
        self.wred.setdefault(name, {})[m[1]] = (low, high, chance)

    def _policy(self, where: str, name: str, words: str) -> None:
        if m := re.fullmatch(r"class (\S+)", words):
            self.inner = m[1]
            self.policies[name][self.inner] = {}
        elif m := re.fullmatch(
            r"(priority|bandwidth percent|random-detect|queue-limit thresh-mode static) ?(\S*)", words
        ):
            self.policies[name][self.inner][m[1].split()[0]] = m[2]
        else:
            raise self.target.fail(where, f"not a command this target writes: {words!r}")

    def behaviour(self) -> Behaviour:
        result = {}
        for port, binding in self.bound.items():
            where = f"interface {port}"
            tables: tuple[Mapping[str, object], ...] = (self.trust, self.queue_map, self.policies)
            for kind, table in zip(("trust-map", "qos-map", "service-policy"), tables, strict=True):
                if binding.get(kind) not in table:
                    raise self.target.fail(where, f"{kind} {binding.get(kind)!r} is not defined")
            built = PortBuilder()
            queue_of = self.queue_map[binding["qos-map"]]
            for dscp, group in self.trust[binding["trust-map"]].items():
                if group not in queue_of:
                    raise self.target.fail(where, f"qos-group {group} leads to no queue")
                built.dscp[dscp] = queue_of[group]
            weights = {}
            for class_name, settings in self.policies[binding["service-policy"]].items():
                if class_name not in self.matches:
                    raise self.target.fail(where, f"class {class_name!r} is not defined")
                queue = self.matches[class_name]
                built.present.add(queue)
                if "bandwidth" in settings:
                    weights[queue] = int(settings["bandwidth"])
                elif "priority" not in settings:
                    raise self.target.fail(where, f"class {class_name!r} is neither priority nor has it bandwidth")
                if "queue-limit" in settings:
                    built.limits[queue] = int(settings["queue-limit"]) * KB
                if "random-detect" in settings:
                    built.random_detect[queue] = self._profile(where, settings["random-detect"])
            # A single class with the remaining bandwidth is simply served last.
            built.weights = weights if len(weights) > 1 else {}
            result[port] = built.build()
        return result

    def _profile(self, where: str, name: str) -> RandomDetect:
        colours = self.wred.get(name, {})
        if set(colours) != set(COLOURS) or len(set(colours.values())) != 1:
            raise self.target.fail(where, f"wred {name!r} is undefined, or its colours differ")
        low, high, chance = colours["green"]
        return RandomDetect(
            min_bytes=low, max_bytes=high, probability_percent=chance, mark_ect=name in self.ecn, drop_not_ect=True
        )


TARGET = Os10()
