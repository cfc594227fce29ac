"""Linux: htb at link rate, prio below it, red with ECN in each data band. Uses only the kernel's own queues.

``red ... ecn`` marks ECT and drops Not-ECT; ``nodrop`` and ``harddrop`` would break one half each and are never
written. Band 1 is served first. Paper: section 5.2.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from mlt.switch_configs.behaviour import Behaviour, RandomDetect
from mlt.switch_configs.capabilities import Capabilities, Feature, Support
from mlt.switch_configs.counters import QueueCounters, merge
from mlt.switch_configs.plan import Plan
from mlt.switch_configs.target import PortBuilder, Procedure, Reading, Target, code_lines
from mlt.switch_configs.vendors import linux_switchdev

AVERAGE_PACKET_BYTES = 1500
# red needs max > min: its arithmetic resolves ramps of two packets or more.
STEP_BYTES = 2 * AVERAGE_PACKET_BYTES
# Tokens for one millisecond, within the precision of timers; min 32 KiB, or slow links are not filled.
MIN_BURST_BYTES = 32 * 1024
BURSTS_PER_SECOND = 1000
# tc stores red's bandwidth in 32 bits of bytes per second; it only ages the average while the queue is idle.
MAX_RED_BANDWIDTH = 8 * (2**32 - 1)
_RED = re.compile(
    r"qdisc add dev (\S+) parent 10:([0-9a-f]+) handle ([0-9a-f]+): red limit (\d+) min (\d+) max (\d+) "
    r"avpkt \d+ burst \d+ probability ([\d.]+) bandwidth \d+bit( ecn)?( nodrop| harddrop)?"
)
_FILTER = re.compile(r"filter add dev (\S+) parent (1|10): protocol (ip|ipv6) prio \d+ u32 match (.+) flowid (\S+)")


class LinuxTc(Target):
    """Shell script of tc commands per port; a queue number q is band (queues - q)."""

    name: ClassVar[str] = "linux"
    title: ClassVar[str] = "Linux (tc: htb, prio, red)"
    comment: ClassVar[str] = "#"
    whole: ClassVar[str] = "the script that 'mlt switch generate' wrote (tc does not print commands)"
    capabilities: ClassVar[Capabilities] = Capabilities(
        step_gap_bytes=STEP_BYTES,
        above_max_ect="mark",
        above_max_source="sch_red.c; measured in user-mode-linux",
        support={
            Feature.SELECTIVE_DROP: Support("yes", "red ecn; measured"),
            Feature.STRICT_PRIORITY: Support("yes", "prio; measured"),
            Feature.ECN_ON_STRICT: Support("yes", "each band has its own red"),
            Feature.QUEUE_LIMIT: Support("yes", "red limit"),
            Feature.STEP_THRESHOLD: Support("yes", "a ramp of two packets, averaging cut to nearly nothing by burst"),
            Feature.FAIR: Support("yes", "htb shares the link between two classes, prio sits in one of them"),
            Feature.WEIGHTED: Support(
                "no", "prio has no weights", "set default.sharing: fair, which this target has with strict priority"
            ),
        },
    )
    procedure: ClassVar[Procedure] = Procedure(
        apply=("sudo sh ./linux.apply.sh   (replaces the ports' root qdisc; a switch port is a bridge port or NIC)",),
        verify=("tc -s qdisc show dev PORT   (red prints marked, early, pdrop)", "tc filter show dev PORT parent 10:"),
        undo=("sudo sh ./linux.undo.sh   (deletes the ports' root qdisc; the system default returns)",),
        notes=("needs sch_htb, sch_prio, sch_red, cls_u32",),
    )

    @property
    def offloads(self) -> bool:
        """True on a switch ASIC under switchdev, where forwarded packets pass only through offloaded settings."""
        fact = self.platform.facts.offload
        return fact is not None and fact.value == "prio-red"

    @property
    def able(self) -> Capabilities:
        able = super().able
        if not self.offloads:
            return able
        why = f"{self.platform.title}: htb, red's limit and filters stay in the kernel, forwarded packets bypass them"
        missing = {
            Feature.QUEUE_LIMIT: Support("yes", "the device's own shared buffer", ""),
            Feature.FAIR: Support("no", why, "set default.sharing: lowest"),
            Feature.WEIGHTED: Support("no", why, "set default.sharing: lowest"),
        }
        return replace(able, support={**able.support, **missing}, buffers_apart=True)

    def steps(self, files: Mapping[str, str]) -> Procedure:
        if not self.offloads:
            return self.procedure
        return replace(
            self.procedure,
            verify=("tc -s qdisc show dev PORT   (red's counters are the ASIC's)", "dcb app show dev PORT dscp-prio"),
            notes=("needs mlxsw, sch_prio, sch_red and iproute2's dcb; L is not written, see devlink sb",),
        )

    def native_port(self, label: str) -> str:
        return f"swp{label}" if label.isdigit() else label

    def render(self, plan: Plan) -> dict[str, str]:
        lines = ["#!/bin/sh", "set -eu"]
        for port in plan.ports:
            if self.offloads:
                lines += linux_switchdev.lines(plan, port, max_bandwidth=MAX_RED_BANDWIDTH)
            else:
                lines += [f"tc {line}" for line in self._port(plan, port)]
        return {"linux.apply.sh": "\n".join(lines) + "\n"}

    def _port(self, plan: Plan, port: str) -> list[str]:
        switch, total = plan.policy.switch, plan.policy.switch.queues
        rate, fair = switch.link_rate_bits_per_second, bool(plan.group_weights)
        burst = max(MIN_BURST_BYTES, rate // 8 // BURSTS_PER_SECOND)
        shape = f"ceil {rate}bit burst {burst} cburst {burst}"
        lines = [
            # First replace a root of another kind: htb cannot be changed in place, and the script may run again.
            f"qdisc replace dev {port} root handle f: pfifo limit 1000",
            f"qdisc replace dev {port} root handle 1: htb default {'3' if fair else '2'}",
            f"class add dev {port} parent 1: classid 1:1 htb rate {rate}bit {shape}",
        ]
        dnn = rate * plan.group_weights["dnn"] // 100 if fair else rate
        lines.append(f"class add dev {port} parent 1:1 classid 1:2 htb rate {dnn}bit {shape}")
        if fair:
            lines += [
                f"class add dev {port} parent 1:1 classid 1:3 htb rate {rate - dnn}bit {shape}",
                f"qdisc add dev {port} parent 1:3 handle 30: bfifo limit {switch.shared_buffer_bytes}",
            ]
        last = total - 1
        lines.append(
            f"qdisc add dev {port} parent 1:2 handle 10: prio bands {total} priomap" + f" {last}" * 16,
        )
        for queue in plan.queues:
            band, handle = total - queue.number, 20 + total - queue.number
            detect = queue.random_detect
            if detect is not None and queue.limit_bytes is not None:
                lines.append(
                    f"qdisc add dev {port} parent 10:{band:x} handle {handle}: red limit {queue.limit_bytes} "
                    f"min {detect.min_bytes} max {detect.max_bytes} avpkt {AVERAGE_PACKET_BYTES} "
                    f"burst {detect.min_bytes // AVERAGE_PACKET_BYTES + 1} "
                    f"probability {detect.probability_percent / 100} bandwidth {min(rate, MAX_RED_BANDWIDTH)}bit ecn"
                )
            elif not (fair and queue.role == "default"):
                lines.append(
                    f"qdisc add dev {port} parent 10:{band:x} handle {handle}: bfifo limit {switch.shared_buffer_bytes}"
                )
        for queue in plan.queues:
            for dscp in queue.dscp:
                if fair:
                    lines += self._filters(port, "1", dscp, "1:2")
                lines += self._filters(port, "10", dscp, f"10:{total - queue.number:x}")
        # Address resolution uses the control class: all other traffic depends on it.
        for parent, flow in (("1", "1:2"), ("10", "10:1")) if fair else (("10", "10:1"),):
            lines.append(f"filter add dev {port} parent {parent}: protocol arp prio 3 u32 match u32 0 0 flowid {flow}")
        return lines

    @staticmethod
    def _filters(port: str, parent: str, dscp: int, flow: str) -> list[str]:
        field = f"{dscp << 2:#04x} 0xfc"
        return [
            f"filter add dev {port} parent {parent}: protocol ip prio 1 u32 match ip dsfield {field} flowid {flow}",
            f"filter add dev {port} parent {parent}: protocol ipv6 prio 2 u32 match ip6 priority {field} flowid {flow}",
        ]

    def undo(self, plan: Plan) -> dict[str, str]:
        lines = ["#!/bin/sh", "set -eu"]
        for port in plan.ports:
            lines += linux_switchdev.undo_lines(plan, port) if self.offloads else [f"tc qdisc del dev {port} root"]
        return {"linux.undo.sh": "\n".join(lines) + "\n"}

    def parse(self, files: Mapping[str, str], reading: Reading | None = None) -> Behaviour:
        reading = reading or Reading()
        if self.offloads:
            offloaded = linux_switchdev.Reader(self)
            for name, text in files.items():
                for number, line in code_lines(text, self.comment):
                    if line != "set -eu":
                        offloaded.line(f"{name}:{number}", line)
            return offloaded.behaviour()
        reader = _Reader(self)
        for name, text in files.items():
            for number, line in code_lines(text, self.comment):
                if line == "set -eu":
                    continue
                if not line.startswith("tc "):
                    raise self.fail(f"{name}:{number}", f"not a tc command: {line!r}")
                reader.line(f"{name}:{number}", line.removeprefix("tc "))
        return reader.behaviour()

    def parse_counters(self, text: str) -> list[QueueCounters]:
        """``tc -s qdisc``: the handle 2N: names band N, and prio's band count turns it into a queue number."""
        rows, port, bands, queue = [], "", 8, -1
        for line in text.splitlines():
            if match := re.match(r"qdisc (\w+) ([0-9a-f]+): dev (\S+)|qdisc (\w+) ([0-9a-f]+): ", line):
                port = match[3] or port
                handle = match[2] or match[5]
                if bands_found := re.search(r"prio 10: .*bands (\d+)", line):
                    bands = int(bands_found[1])
                queue = bands - (int(handle) - 20) if handle.isdigit() and 21 <= int(handle) <= 28 else -1
                if handle == "30":
                    queue = 0
            elif queue >= 0 and (match := re.match(r"\s*Sent \d+ bytes (\d+) pkt", line)):
                rows.append(QueueCounters(port=port, queue=queue, sent=int(match[1])))
            elif queue >= 0 and (match := re.match(r"\s*marked (\d+) early (\d+) pdrop (\d+)", line)):
                marked, early, at_limit = (int(group) for group in match.groups())
                rows.append(
                    QueueCounters(port=port, queue=queue, marked=marked, dropped_early=early, dropped_at_limit=at_limit)
                )
        return merge(rows)


class _Reader:
    """Reads tc commands back; a flow to an unknown band or a red without ecn is rejected or shows as a difference."""

    def __init__(self, target: LinuxTc) -> None:
        self.target = target
        self.ports: dict[str, PortBuilder] = {}
        self.bands: dict[str, int] = {}
        self.catch_all: dict[str, int] = {}
        self.rates: dict[str, dict[str, int]] = {}
        self.flows: dict[str, dict[str, dict[int, int]]] = {}
        self.other: set[str] = set()

    def line(self, where: str, words: str) -> None:
        if re.fullmatch(r"qdisc replace dev \S+ root handle f: pfifo limit \d+", words):
            return
        if m := re.fullmatch(r"qdisc replace dev (\S+) root handle 1: htb default [23]", words):
            self.ports[m[1]] = PortBuilder()
        elif m := re.match(
            r"class add dev (\S+) parent 1:1? classid (1:[123]) htb rate (\d+)bit ceil \d+bit burst", words
        ):
            self.rates.setdefault(m[1], {})[m[2]] = int(m[3])
        elif m := re.fullmatch(r"qdisc add dev (\S+) parent 1:3 handle 30: bfifo limit \d+", words):
            self.other.add(m[1])
        elif m := re.fullmatch(
            r"qdisc add dev (\S+) parent 1:2 handle 10: prio bands (\d+) priomap((?: \d+){16})", words
        ):
            self.bands[m[1]] = int(m[2])
            maps = set(map(int, m[3].split()))
            if len(maps) != 1:
                raise self.target.fail(where, "priomap must send every priority to one band: DSCP decides, not TOS")
            self.catch_all[m[1]] = self.bands[m[1]] - 1 - maps.pop()
        elif m := re.fullmatch(r"qdisc add dev (\S+) parent 10:([0-9a-f]+) handle \d+: bfifo limit \d+", words):
            self._present(where, m[1], m[2])
        elif m := _RED.fullmatch(words):
            self._red(where, m)
        elif re.fullmatch(r"filter add dev \S+ parent 10?: protocol arp prio 3 u32 match u32 0 0 flowid \S+", words):
            return
        elif m := _FILTER.fullmatch(words):
            self._filter(where, m)
        else:
            raise self.target.fail(where, f"not a command this target writes: {words!r}")

    def _present(self, where: str, port: str, band: str) -> int:
        number = self.bands.get(port, 0) - int(band, 16)
        if number < 0:
            raise self.target.fail(where, f"band {band} does not exist")
        self.ports[port].present.add(number)
        return number

    def _red(self, where: str, m: re.Match[str]) -> None:
        queue = self._present(where, m[1], m[2])
        limit, low, high, chance = int(m[4]), int(m[5]), int(m[6]), round(float(m[7]) * 100)
        if not low < high < limit or not 0 < chance <= 100:
            raise self.target.fail(where, f"red needs min < max < limit and a probability; got {low}, {high}, {limit}")
        self.ports[m[1]].limits[queue] = limit
        self.ports[m[1]].random_detect[queue] = RandomDetect(
            min_bytes=low,
            max_bytes=high,
            probability_percent=chance,
            mark_ect=m[8] is not None and m[9] != " harddrop",
            drop_not_ect=m[9] != " nodrop",
        )

    def _filter(self, where: str, m: re.Match[str]) -> None:
        match = re.fullmatch(r"(?:ip dsfield|ip6 priority) (0x[0-9a-f]+) 0xfc", m[4])
        if match is None or int(match[1], 16) & 3:
            raise self.target.fail(where, f"must match the six DSCP bits only: {m[4]!r}")
        dscp = int(match[1], 16) >> 2
        flows = self.flows.setdefault(m[1], {}).setdefault(f"{m[3]} {m[2]}", {})
        if dscp in flows:
            raise self.target.fail(where, f"dscp {dscp} is matched twice")
        if m[2] == "1":
            flows[dscp] = 1
            return
        band = int(m[5].removeprefix("10:"), 16)
        if not 1 <= band <= self.bands.get(m[1], 0):
            raise self.target.fail(where, f"flowid {m[5]} names an unknown band")
        flows[dscp] = self.bands[m[1]] - band

    def behaviour(self) -> Behaviour:
        result = {}
        for port, built in self.ports.items():
            flows = self.flows.get(port, {})
            if flows.get("ip 10") != flows.get("ipv6 10"):
                raise self.target.fail(f"dev {port}", "IPv4 and IPv6 filters disagree")
            built.dscp = dict(flows.get("ip 10", {}))
            if port in self.other:
                rates = self.rates[port]
                for queue in built.present:
                    built.groups[queue] = "dnn"
                built.present.add(0)
                built.groups[0] = "other"
                total = rates["1:2"] + rates["1:3"]
                built.group_weights = {
                    "dnn": round(rates["1:2"] * 100 / total),
                    "other": round(rates["1:3"] * 100 / total),
                }
                if set(flows.get("ip 1", {})) != set(built.dscp):
                    raise self.target.fail(f"dev {port}", "a data DSCP is missing at the upper level")
            result[port] = built.build(default_queue=0 if port in self.other else self.catch_all.get(port, 0))
        return result


TARGET = LinuxTc()
