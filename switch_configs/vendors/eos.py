"""Arista EOS, written by Arista's own renderer (pyavd) from validated structured configuration; no templates here.

Source of behaviour: AVD's schema, where letting Not-ECT through is an opt-in (``ecn allow non-ect``); that the default
drops it is inferred. ``random-detect drop`` drops ECN-capable packets too and is never written.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import import_module
from typing import Any, ClassVar

from mlt.switch_configs.behaviour import Behaviour, RandomDetect
from mlt.switch_configs.capabilities import Capabilities, Feature, Support
from mlt.switch_configs.counters import COUNTS, QueueCounters, integer, merge
from mlt.switch_configs.errors import MissingToolError, invalid_thresholds
from mlt.switch_configs.plan import Plan
from mlt.switch_configs.target import PortBuilder, Procedure, Reading, Target, Unconfirmed

from mlt._shared.extras import how_to_install
from mlt._shared.structured_text import parse_json

_UNITS = {"bytes": 1, "kbytes": 1000, "mbytes": 1_000_000}
_DETECT = re.compile(
    r"random-detect ecn minimum-threshold (\d+) (\w+) maximum-threshold (\d+) (\w+) max-mark-probability (\d+) weight 0"
)


class Eos(Target):
    """A qos profile with one uc-tx-queue per class, bound to interfaces; queue 7 is served first."""

    name: ClassVar[str] = "eos"
    title: ClassVar[str] = "Arista EOS"
    comment: ClassVar[str] = "!"
    capabilities: ClassVar[Capabilities] = Capabilities(
        above_max_ect="unknown",
        above_max_source="no document found says what happens to ECT above the maximum",
        support={
            Feature.SELECTIVE_DROP: Support("unconfirmed", "the default without 'ecn allow non-ect', by inference"),
            Feature.STRICT_PRIORITY: Support("yes", "priority strict"),
            Feature.ECN_ON_STRICT: Support("yes", "random-detect belongs to the queue, not to the scheduler"),
            Feature.WEIGHTED: Support("yes", "no priority with bandwidth percent"),
            Feature.STEP_THRESHOLD: Support(
                "no", "what happens to ECT above the maximum is not documented, so the ramp ends at L"
            ),
            Feature.QUEUE_LIMIT: Support(
                "no", "AVD's schema has no per-queue limit; buffer profiles differ per platform"
            ),
            Feature.FAIR: Support("no", "one scheduler level", "set default.sharing: weighted"),
        },
    )
    procedure: ClassVar[Procedure] = Procedure(
        apply=(
            "configure checkpoint save mlt-before  (UNCONFIRMED)",
            "configure session mlt; paste this file; show session-config diffs; commit timer 00:05:00",
            "verify, then: configure session mlt commit   (without it everything returns by itself)",
        ),
        verify=(
            "show qos maps",
            "show qos interfaces PORT",
            "show qos interfaces PORT ecn counters queue",
            "show interfaces PORT counters queue detail",
        ),
        undo=(
            "configure session mlt-undo; paste the undo file; commit",
            "or, for whatever was configured before: configure replace checkpoint:mlt-before  (UNCONFIRMED)",
        ),
        notes=("queues are called uc-tx-queue or tx-queue, and units differ, by platform: see 'show qos profile'",),
    )
    counter_commands: ClassVar[tuple[str, ...]] = (
        "show interfaces PORT counters queue detail",
        "show qos interfaces PORT ecn counters queue | json",
    )
    # Arista's queue tables have one column for all drops.
    counts: ClassVar[frozenset[str]] = COUNTS - {"dropped_early"}
    unconfirmed: ClassVar[tuple[Unconfirmed, ...]] = (
        Unconfirmed(
            r"random-detect ecn minimum", "that Not-ECT packets are dropped here (inferred from AVD's opt-out)"
        ),
        Unconfirmed(r"^no qos map dscp", "the negated form of qos map dscp"),
    )

    qos_sections: ClassVar[re.Pattern[str]] = re.compile(r"qos |platform trident mmu |traffic-policies")
    qos_inside: ClassVar[re.Pattern[str]] = re.compile(
        r"service-profile |qos |(uc-|mc-)?tx-queue |random-detect |priority strict$|no priority$|bandwidth |priority-fl"
    )

    def native_port(self, label: str) -> str:
        if not label.isdigit():
            return label
        # A port with several lanes has the name of its first lane.
        return f"Ethernet{label}/1" if (self.platform.lanes(int(label)) or 1) > 1 else f"Ethernet{label}"

    def structured(self, plan: Plan) -> dict[str, Any]:
        """AVD's structured configuration (the form that its schema validates)."""
        queues = []
        for queue in plan.queues:
            entry: dict[str, Any] = {"id": queue.number}
            if queue.weight_percent is None:
                entry["priority"] = "priority strict"
            else:
                entry |= {"priority": "no priority", "bandwidth_percent": queue.weight_percent}
            detect = queue.random_detect
            if detect is not None:
                threshold = {
                    "units": "bytes",
                    "min": detect.min_bytes,
                    "max": detect.max_bytes,
                    "max_probability": detect.probability_percent,
                    "weight": 0,
                }
                entry["random_detect"] = {"ecn": {"count": True, "threshold": threshold}}
            queues.append(entry)
        return {
            "hostname": "switch",
            "qos": {"map": {"dscp": [f"{dscp} to traffic-class {q}" for q, dscp in _dscp_groups(plan)]}},
            "qos_profiles": [{"name": plan.name, "trust": "dscp", "uc_tx_queues": queues}],
            "ethernet_interfaces": [{"name": port, "service_profile": plan.name} for port in plan.ports],
        }

    def render(self, plan: Plan) -> dict[str, str]:
        try:
            pyavd: Any = import_module("pyavd")
        except ImportError as error:
            raise MissingToolError(
                f"target eos is written by Arista's pyavd, which is not installed: {how_to_install('switch', 'pyavd')}"
            ) from error
        checked = pyavd.validate_structured_config(self.structured(plan))
        violations = checked.validation_result.violations
        if violations or checked.validated_data is None:
            raise self.fail("structured configuration", "; ".join(f"{v.path}: {v.message}" for v in violations))
        text = pyavd.get_device_config(checked.validated_data)
        kept = [line for line in text.splitlines() if line.strip() not in ("hostname switch", "end")]
        while kept and kept[0] == "!":
            kept.pop(0)
        return {"eos.apply.txt": "\n".join(kept).rstrip("\n!") + "\n"}

    def undo(self, plan: Plan) -> dict[str, str]:
        lines = []
        for port in plan.ports:
            lines += [f"interface {port}", f"   no service-profile {plan.name}"]
        lines.append(f"no qos profile {plan.name}")
        lines += [f"no qos map dscp {dscp}" for _, dscp in _dscp_groups(plan)]
        return {"eos.undo.txt": "\n".join(lines) + "\n"}

    def parse(self, files: Mapping[str, str], reading: Reading | None = None) -> Behaviour:
        reading = reading or Reading()
        reader = _Reader(self, reading)
        self.take_lines(files, reading, reader.line)
        return reader.behaviour()

    def parse_counters(self, text: str) -> list[QueueCounters]:
        if text.lstrip().startswith("{"):
            return _marked(text)
        rows, port, columns = [], "", []
        for line in text.splitlines():
            cells = line.split()
            if match := re.match(r"\s*((?:Ethernet|Et)\S+?):?\s*$", line):
                port = _whole(match[1])
            elif "Marked" in line and "Queue" in line:
                columns = ["queue", "marked"]
            elif "DropPkts" in line or "Dropped" in line:
                columns = ["queue", "sent", "bytes", "dropped_at_limit"]
            elif cells and columns and (match := re.fullmatch(r"(?:UC|uc-?)?(\d)", cells[0])):
                values = dict(zip(columns[1:], cells[1:], strict=False))
                counted = {name: integer(value) for name, value in values.items() if name != "bytes"}
                rows.append(QueueCounters(port=port, queue=int(match[1]), **counted))
            elif len(cells) >= 4 and re.match(r"Et", cells[0]) and (match := re.fullmatch(r"UC(\d)", cells[1])):
                port = _whole(cells[0])
                rows.append(
                    QueueCounters(
                        port=port, queue=int(match[1]), sent=integer(cells[2]), dropped_at_limit=integer(cells[-2])
                    )
                )
        return merge(rows)


def _marked(text: str) -> list[QueueCounters]:
    """``show qos interfaces ecn counters queue | json``: intfQueueCounters, as Arista's own tests (ANTA) read it."""
    try:
        ports = parse_json(text)["intfQueueCounters"].items()
        return [
            QueueCounters(port=port, queue=int(queue), marked=integer(str(marked)))
            for port, found in ports
            for queue, marked in found["queueCounters"].items()
        ]
    except (ValueError, KeyError, TypeError, AttributeError):
        return []


def _whole(port: str) -> str:
    """``Et1/1`` in tables is ``Ethernet1/1`` in the configuration."""
    return re.sub(r"^Et(?=\d)", "Ethernet", port)


class _Reader:
    """Profiles, the DSCP map and the interfaces; QoS on an interface itself counts as a separate profile."""

    def __init__(self, target: Eos, reading: Reading) -> None:
        self.target, self.reading = target, reading
        self.profiles: dict[str, PortBuilder] = {}
        self.trusted: set[str] = set()
        self.bound: dict[str, str] = {}
        self.interfaces: list[str] = []
        self.dscp: dict[int, int] = {}
        self.section, self.queue = "", -1

    def line(self, where: str, line: str) -> None:
        words = line.strip()
        if not line.startswith(" "):
            self._open(where, words)
            return
        if self.section.startswith("interface ") and (match := re.fullmatch(r"service-profile (\S+)", words)):
            self.bound[self.interfaces[-1]] = match[1]
            return
        if self.section.startswith("interface ") and self.reading.strict:
            raise self.target.fail(where, f"not a command this target writes: {words!r}")
        built = self.profiles.setdefault(self.section, PortBuilder())
        if match := re.fullmatch(r"(?:uc-)?tx-queue ([0-7])", words):
            self.queue = int(match[1])
            built.present.add(self.queue)
        elif words == "qos trust dscp":
            self.trusted.add(self.section)
        else:
            self._queue_line(where, built, self.queue, words)

    def _open(self, where: str, words: str) -> None:
        self.section, self.queue = words, -1
        if match := re.fullmatch(r"qos map dscp ([\d ]+) to traffic-class (\d)", words):
            for value in map(int, match[1].split()):
                if value > 63 or value in self.dscp:
                    raise self.target.fail(where, f"dscp {value} is out of range or mapped twice")
                self.dscp[value] = int(match[2])
        elif re.fullmatch(r"qos profile \S+", words):
            self.profiles[words] = PortBuilder()
        elif match := re.fullmatch(r"interface (\S+)", words):
            self.interfaces.append(self.reading.name(match[1]))
            self.section = f"interface {self.interfaces[-1]}"
        else:
            raise self.target.fail(where, f"not a command this target writes: {words!r}")

    def _queue_line(self, where: str, built: PortBuilder, queue: int, words: str) -> None:
        if match := re.fullmatch(r"bandwidth percent (\d+)", words):
            built.weights[queue] = int(match[1])
        elif match := _DETECT.fullmatch(words):
            if match[2] not in _UNITS or match[4] not in _UNITS:
                raise self.target.fail(where, f"unit {match[2]!r} or {match[4]!r} is not one of {', '.join(_UNITS)}")
            low, high = int(match[1]) * _UNITS[match[2]], int(match[3]) * _UNITS[match[4]]
            if low > high or not 0 < int(match[5]) <= 100:
                raise self.target.fail(where, invalid_thresholds(low, high, int(match[5])))
            built.random_detect[queue] = RandomDetect(
                min_bytes=low, max_bytes=high, probability_percent=int(match[5]), mark_ect=True, drop_not_ect=True
            )
        elif words == "qos random-detect ecn allow non-ect":
            raise self.target.fail(where, "this lets Not-ECT through: drops are no longer selective")
        elif words not in ("priority strict", "no priority", "random-detect ecn count"):
            raise self.target.fail(where, f"not a command this target writes: {words!r}")

    def behaviour(self) -> Behaviour:
        result = {}
        for port in self.interfaces:
            if not self.reading.wants(port):
                continue
            own = f"interface {port}"
            name = f"qos profile {self.bound[port]}" if port in self.bound else own
            built = self.profiles.get(name)
            if built is None and name != own:
                self.reading.unknown(self.target.fail(own, f"service-profile {self.bound[port]!r} is not defined"))
            if built is not None and name not in self.trusted and own not in self.trusted:
                self.reading.unknown(self.target.fail(name, "qos trust dscp is missing, so DSCP is ignored"))
            if built is None:
                built = PortBuilder()
            built.dscp = self.dscp
            result[port] = built.build()
        return result


def _dscp_groups(plan: Plan) -> list[tuple[int, str]]:
    """(queue, "46 47 ...") for each queue with a DSCP."""
    table = plan.dscp_to_queue()
    return [
        (number, " ".join(str(dscp) for dscp, queue in enumerate(table) if queue == number))
        for number in sorted(set(table))
    ]


TARGET = Eos()
