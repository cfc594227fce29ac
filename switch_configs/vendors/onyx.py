"""NVIDIA (Mellanox) Onyx, the paper's own switch system (3.7.1134 on SN2100).

Syntax: Onyx manual's QoS and shared-buffer chapters, DOC-2500, DOC-2566, DOC-2884; ``congestion-control both`` both
drops and marks (choices red, ecn, both in Mellanox's own Ansible module).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import ClassVar

from mlt.switch_configs.behaviour import Behaviour, RandomDetect
from mlt.switch_configs.capabilities import Capabilities, Feature, Support
from mlt.switch_configs.counters import QueueCounters, integer, merge
from mlt.switch_configs.errors import ParseError
from mlt.switch_configs.plan import Plan
from mlt.switch_configs.target import PortBuilder, Procedure, Reading, Target, Unconfirmed, code_lines

KB = 1024
RESERVED_BYTES = 1500
_MODES = {"both": (True, True), "ecn": (True, False), "red": (False, True)}
_TC = re.compile(r"interface ethernet (\S+) traffic-class (\d) (.+)")
_CC = re.compile(r"congestion-control (\w+) minimum-absolute (\d+) maximum-absolute (\d+)")
_BUFFER = re.compile(
    r"interface ethernet (\S+) egress-buffer ePort\.tc(\d) map pool (\S+) reserved (\d+) shared size (\d+)"
)
_ALPHA = re.compile(
    r"interface ethernet (\S+) egress-buffer ePort\.tc(\d) map pool (\S+) reserved \d+ shared alpha (\S+)"
)
_QOS = re.compile(
    r"interface ethernet \S+ (qos|traffic-class|egress-buffer|ingress-buffer|dcb) |pool |traffic pool |advanced buffer"
)
_DSCP = re.compile(r"interface ethernet (\S+) qos map dscp (\d+) to switch-priority (\d)")


class Onyx(Target):
    """Flat lines, one per port and traffic class; thresholds in KB; traffic class 7 is served first."""

    name: ClassVar[str] = "onyx"
    title: ClassVar[str] = "NVIDIA Onyx 3.6.8 or later (paper: 3.7.1134)"
    comment: ClassVar[str] = "##"
    capabilities: ClassVar[Capabilities] = Capabilities(
        threshold_unit_bytes=KB,
        limit_unit_bytes=KB,
        buffers_apart=True,
        above_max_ect="mark",
        above_max_source="Spectrum marks above max as well (mlxsw driver)",
        support={
            Feature.SELECTIVE_DROP: Support("yes", "congestion-control both sets the mark and the drop bit"),
            Feature.STRICT_PRIORITY: Support("yes", "dcb ets strict"),
            Feature.ECN_ON_STRICT: Support("yes", "congestion control is independent of the scheduler"),
            Feature.WEIGHTED: Support("yes", "dcb ets wrr"),
            Feature.QUEUE_LIMIT: Support("unconfirmed", "static pool with a shared size per traffic class"),
            Feature.STEP_THRESHOLD: Support("yes", "minimum equal to maximum is used in the field"),
            Feature.FAIR: Support(
                "no", "one scheduler level: strict classes always go before wrr ones", "set default.sharing: weighted"
            ),
        },
    )
    procedure: ClassVar[Procedure] = Procedure(
        apply=(
            "configuration write to mlt-before            (keeps the present state under a name)",
            "configure terminal, then paste this file; configuration write when verified",
        ),
        verify=(
            "show qos interface ethernet PORT",
            "show dcb ets interface ethernet PORT",
            "show interfaces ethernet PORT congestion-control",
            "show interfaces ethernet PORT counters tc all",
            "show buffers details interfaces ethernet PORT",
        ),
        undo=(
            "paste the undo file, which returns every line of this one to the device's default",
            "or, for whatever was configured before: configuration switch-to mlt-before  (UNCONFIRMED)",
        ),
        notes=(
            "advanced buffer management replaces the simple traffic pools on the whole switch, not on these ports only",
        ),
    )
    unconfirmed: ClassVar[tuple[Unconfirmed, ...]] = (
        Unconfirmed(
            r"^pool .* static",
            "a static pool beside the default ones, which keep their size; DOC-2566 shows dynamic pools",
        ),
        Unconfirmed(r"shared size", "a fixed shared size per traffic class (documents show alpha)"),
        Unconfirmed(r"no egress-buffer|no pool|no advanced", "the negated forms of the buffer commands"),
        Unconfirmed(r"no traffic-class \d (dcb|bind)|no qos map", "the negated forms of bind, dcb ets and qos map"),
    )

    def native_port(self, label: str) -> str:
        return f"1/{label}" if label.isdigit() else label

    def render(self, plan: Plan) -> dict[str, str]:
        lines = []
        if any(queue.limit_bytes is not None for queue in plan.queues):
            lines.append("advanced buffer management force")
            lines.append(f"pool {plan.name} size {plan.policy.switch.shared_buffer_bytes} type static")
        for port in plan.ports:
            at = f"interface ethernet {port}"
            lines.append(f"{at} qos trust L3")
            lines += [
                f"{at} qos map dscp {dscp} to switch-priority {queue}"
                for dscp, queue in enumerate(plan.dscp_to_queue())
            ]
            for queue in plan.queues:
                tc = f"{at} traffic-class {queue.number}"
                lines.append(f"{tc} bind switch-priority {queue.number}")
                weight = queue.weight_percent
                lines.append(f"{tc} dcb ets strict" if weight is None else f"{tc} dcb ets wrr {weight}")
                detect = queue.random_detect
                if detect is not None:
                    low, high = detect.min_bytes // KB, detect.max_bytes // KB
                    lines.append(f"{tc} congestion-control both minimum-absolute {low} maximum-absolute {high}")
                if queue.limit_bytes is not None:
                    lines.append(
                        f"{at} egress-buffer ePort.tc{queue.number} map pool {plan.name} reserved {RESERVED_BYTES} "
                        f"shared size {queue.limit_bytes - RESERVED_BYTES}"
                    )
        return {"onyx.apply.txt": "\n".join(lines) + "\n"}

    def undo(self, plan: Plan) -> dict[str, str]:
        lines = []
        limited = False
        for port in plan.ports:
            at = f"interface ethernet {port}"
            for queue in plan.queues:
                if queue.limit_bytes is not None:
                    lines.append(f"{at} no egress-buffer ePort.tc{queue.number}")
                    limited = True
                if queue.random_detect is not None:
                    lines.append(f"{at} no traffic-class {queue.number} congestion-control")
                lines.append(f"{at} no traffic-class {queue.number} dcb ets")
                lines.append(f"{at} no traffic-class {queue.number} bind switch-priority")
            lines += [f"{at} no qos map dscp {dscp}" for dscp in range(len(plan.dscp_to_queue()))]
            lines.append(f"{at} no qos trust")
        if limited:
            lines += [f"no pool {plan.name}", "no advanced buffer management force"]
        return {"onyx.undo.txt": "\n".join(lines) + "\n"}

    def parse(self, files: Mapping[str, str], reading: Reading | None = None) -> Behaviour:
        reading = reading or Reading()
        reader = _Reader(self, reading)
        for name, text in files.items():
            for number, line in code_lines(text, self.comment):
                where, words = f"{name}:{number}", line.strip()
                if not reading.strict and not _QOS.match(words):
                    reading.skipped += 1
                    continue
                try:
                    reader.line(where, words)
                except ParseError as error:
                    reading.unknown(error)
        return reader.behaviour()

    def parse_counters(self, text: str) -> list[QueueCounters]:
        rows, port, queue = [], "", None
        names = {
            "tx packet": "sent", "tx packets": "sent", "ecn marked packets": "marked",
            "tx ecn marked packets": "marked", "wred discard": "dropped_early", "tx wred discard": "dropped_early",
            "tx queue discard": "dropped_at_limit", "tx no buffer discard uc": "dropped_at_limit",
        }  # fmt: skip
        for line in text.splitlines():
            if match := re.match(r"\s*(?:Eth(?:ernet)?\s*|interface ethernet )(\d+/\d+)", line):
                port = match[1]
            if match := re.match(r"\s*(?:TC|Traffic class)[:\s]+(\d)\b", line, re.IGNORECASE):
                queue = int(match[1])
            match = re.match(r"\s*(\d[\d,]*)\s+(\D.+)$", line) or re.match(r"\s*([\d,]+)\s*:\s*(.+)$", line)
            if match and queue is not None and (field := names.get(match[2].strip().lower())):
                rows.append(QueueCounters(port=port, queue=queue, **{field: integer(match[1])}))
        return merge(rows)


class _Reader:
    """Reads independent lines and joins them port by port."""

    def __init__(self, target: Onyx, reading: Reading) -> None:
        self.target, self.reading = target, reading
        self.ports: dict[str, PortBuilder] = {}
        self.priority_to_tc: dict[str, dict[int, int]] = {}
        self.maps: dict[str, dict[int, int]] = {}
        self.trusted: set[str] = set()
        self.pools: set[str] = set()

    def line(self, where: str, line: str) -> None:
        if line == "advanced buffer management force":
            return
        if found := re.fullmatch(r"pool (\S+) size \d+ type static", line):
            self.pools.add(found[1])
            return
        match = re.match(r"interface ethernet (\S+) ", line)
        if match is None:
            raise self.target.fail(where, f"not a command this target writes: {line!r}")
        label = match[1]
        port = self.ports.setdefault(label, PortBuilder())
        if line.endswith(" qos trust L3"):
            self.trusted.add(label)
        elif found := _DSCP.fullmatch(line):
            if int(found[2]) in self.maps.setdefault(label, {}):
                raise self.target.fail(where, f"dscp {found[2]} is mapped twice")
            self.maps[label][int(found[2])] = int(found[3])
        elif found := _BUFFER.fullmatch(line):
            if found[3] not in self.pools:
                raise self.target.fail(where, f"pool {found[3]!r} is not defined as a static one")
            port.limits[int(found[2])] = int(found[4]) + int(found[5])
        elif found := _ALPHA.fullmatch(line):
            # A quota of a dynamic pool is a share of the free buffer, not a number of bytes.
            port.dynamic_limits[int(found[2])] = f"alpha {found[4]} of {found[3]}"
            self.reading.kept.append(f"{label} queue {found[2]}: limit alpha {found[4]} of {found[3]}")
        elif found := _TC.fullmatch(line):
            self._traffic_class(where, port, self.priority_to_tc.setdefault(label, {}), found)
        else:
            raise self.target.fail(where, f"not a command this target writes: {line!r}")

    def behaviour(self) -> Behaviour:
        for label, port in self.ports.items():
            where = f"interface {label}"
            if not self.reading.wants(label):
                continue
            if label not in self.trusted:
                self.reading.unknown(self.target.fail(where, "qos trust L3 is missing, so DSCP is ignored"))
            for dscp, priority in self.maps.get(label, {}).items():
                queue = self.priority_to_tc.get(label, {}).get(priority)
                if not 0 <= dscp < 64 or queue is None:
                    what = f"dscp {dscp} leads to unbound switch-priority {priority}"
                    self.reading.unknown(self.target.fail(where, what))
                else:
                    port.dscp[dscp] = queue
        return {label: port.build() for label, port in self.ports.items() if self.reading.wants(label)}

    def _traffic_class(self, where: str, port: PortBuilder, bound: dict[int, int], found: re.Match[str]) -> None:
        tc, rest = int(found[2]), found[3]
        if match := re.fullmatch(r"bind switch-priority (\d)", rest):
            bound[int(match[1])] = tc
            port.present.add(tc)
        elif rest == "dcb ets strict":
            port.weights.pop(tc, None)
        elif match := re.fullmatch(r"dcb ets wrr (\d+)", rest):
            port.weights[tc] = int(match[1])
        elif match := _CC.fullmatch(rest):
            if match[1] not in _MODES:
                raise self.target.fail(where, f"congestion-control {match[1]!r}; the choices are {', '.join(_MODES)}")
            low, high = int(match[2]) * KB, int(match[3]) * KB
            if low > high:
                raise self.target.fail(where, f"minimum {match[2]} exceeds maximum {match[3]}")
            mark, drop = _MODES[match[1]]
            port.random_detect[tc] = RandomDetect(
                min_bytes=low, max_bytes=high, probability_percent=100, mark_ect=mark, drop_not_ect=drop
            )
        else:
            raise self.target.fail(where, f"not a traffic-class command this target writes: {rest!r}")


TARGET = Onyx()
