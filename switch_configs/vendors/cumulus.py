"""NVIDIA Cumulus Linux 5.x, as ``nv set`` lines.

Syntax: Cumulus Linux 5.9 documentation (Quality of Service) and the published NVUE schema. ``ecn enable`` alone marks,
and drops only when the buffer is full; ``red enable`` is a separate setting that drops Not-ECT.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any, ClassVar

from mlt.switch_configs.behaviour import Behaviour, PortBehaviour, RandomDetect
from mlt.switch_configs.capabilities import Capabilities, Feature, Support
from mlt.switch_configs.counters import COUNTS, QueueCounters, integer, merge
from mlt.switch_configs.errors import ParseError, SwitchConfigError
from mlt.switch_configs.plan import Plan
from mlt.switch_configs.target import PortBuilder, Procedure, Reading, Target, Unconfirmed, code_lines

from mlt._shared.units import SIZE

GLOBAL = "default-global"
STEP_BYTES = 1024
RESERVED_BYTES = 1500
STATIC_POOL = 2
DEFAULT_POOL = "0"
Tree = dict[str, Any]
_COLUMNS = {
    "tx-frames": "sent",
    "tx-uc-buffer-discards": "dropped_at_limit",
    "wred-discards": "dropped_early",
    "ecn-marked-packets": "marked",
    "ecn-marked-frames": "marked",
}

# The parts of `nv set qos` that are read; also pauses per port, which the policy cannot express.
READ_GLOBALLY = {"egress-scheduler", "mapping", "egress-queue-mapping", "advance-buffer-config", "congestion-control"}
PAUSES = {"pfc", "link-pause", "pfc-watchdog"}


class Cumulus(Target):
    """One tree of keys; the traffic class is the queue, the highest served first."""

    name: ClassVar[str] = "cumulus"
    title: ClassVar[str] = "NVIDIA Cumulus Linux 5.5 or later (NVUE)"
    comment: ClassVar[str] = "#"
    whole: ClassVar[str] = "what 'nv config show -o commands' prints"
    capabilities: ClassVar[Capabilities] = Capabilities(
        step_gap_bytes=STEP_BYTES,
        buffers_apart=True,
        above_max_ect="mark",
        above_max_source="Spectrum marks above max as well",
        support={
            Feature.SELECTIVE_DROP: Support("yes", "ecn enable and red enable are separate keys; both are set"),
            Feature.STRICT_PRIORITY: Support("yes", "egress-scheduler mode strict"),
            Feature.ECN_ON_STRICT: Support("yes", "congestion control is independent of the scheduler"),
            Feature.WEIGHTED: Support("yes", "egress-scheduler mode dwrr with bw-percent"),
            Feature.QUEUE_LIMIT: Support("unconfirmed", "advance-buffer-config shared-bytes on a static egress pool"),
            Feature.STEP_THRESHOLD: Support("yes", "the least step of 1 KiB between min and max"),
            Feature.FAIR: Support("no", "one scheduler level", "set default.sharing: weighted"),
        },
    )
    procedure: ClassVar[Procedure] = Procedure(
        apply=(
            "nv config save; nv config history         (note the newest revision: it is the state before)",
            "sh ./cumulus.apply.sh && nv config diff && nv config apply",
        ),
        verify=(
            "nv show qos congestion-control mlt",
            "nv show interface PORT counters qos egress-queue-stats   (5.5 and later)",
            "nv show interface PORT counters   (ecn-marked-packets, per port)",
        ),
        undo=(
            "sh ./cumulus.undo.sh && nv config apply   (unsets exactly these keys; defaults return)",
            "or, for whatever was configured before: nv config apply REVISION  (UNCONFIRMED)",
        ),
        notes=("default-global profiles act on every port of the switch; only congestion control is bound per port",),
    )
    # Marks are counted per port; only newer releases have a column per queue.
    counts: ClassVar[frozenset[str]] = COUNTS - {"marked"}
    unconfirmed: ClassVar[tuple[Unconfirmed, ...]] = (
        Unconfirmed(r"egress-pool 0 memory-percent", "that the default pool may be made smaller while traffic runs"),
        Unconfirmed(
            r"advance-buffer-config", "a static egress pool with shared-bytes per class (in schema, not tried)"
        ),
    )

    def native_port(self, label: str) -> str:
        return f"swp{label}" if label.isdigit() else label

    def tree(self, plan: Plan) -> Tree:
        """The configuration as NVUE's tree of keys (the form that the schema validates)."""
        numbers = [queue.number for queue in plan.queues]
        profile = plan.name
        qos: Tree = {
            "mapping": {
                GLOBAL: {
                    "trust": "l3",
                    "dscp": {str(dscp): {"switch-priority": q} for dscp, q in enumerate(plan.dscp_to_queue())},
                }
            },
            "egress-queue-mapping": {
                GLOBAL: {"switch-priority": {str(number): {"traffic-class": number} for number in numbers}}
            },
            "egress-scheduler": {
                GLOBAL: {
                    "traffic-class": {
                        str(queue.number): {"mode": "strict"}
                        if queue.weight_percent is None
                        else {"mode": "dwrr", "bw-percent": queue.weight_percent}
                        for queue in plan.queues
                    }
                }
            },
            "congestion-control": {
                profile: {
                    "traffic-class": {
                        str(queue.number): {
                            "ecn": "enable",
                            "red": "enable",
                            "min-threshold": queue.random_detect.min_bytes,
                            "max-threshold": queue.random_detect.max_bytes,
                            "probability": queue.random_detect.probability_percent,
                        }
                        for queue in plan.queues
                        if queue.random_detect is not None
                    }
                }
            },
        }
        limits = {
            str(queue.number): {
                "service-pool": STATIC_POOL,
                "reserved": RESERVED_BYTES,
                "shared-bytes": queue.limit_bytes - RESERVED_BYTES,
            }
            for queue in plan.queues
            if queue.limit_bytes is not None
        }
        if limits:
            qos["advance-buffer-config"] = {
                GLOBAL: {
                    "egress-pool": {
                        DEFAULT_POOL: {"memory-percent": 100 - self._percent(plan)},
                        str(STATIC_POOL): {"mode": "static", "memory-percent": self._percent(plan)},
                    },
                    "egress-lossy-buffer": {"traffic-class": limits},
                }
            }
        interfaces = {port: {"qos": {"congestion-control": {"profile": profile}}} for port in plan.ports}
        return {"qos": qos, "interface": interfaces}

    def _percent(self, plan: Plan) -> int:
        """The static pool's share of the memory; the device's own pool keeps the rest, because the sum must be 100."""
        memory = self.platform.facts.buffer_bytes
        wanted = plan.policy.switch.shared_buffer_bytes
        percent = math.ceil(wanted * 100 / (wanted if memory is None else memory.value))
        if percent > 90:
            raise SwitchConfigError(
                f"{self.spec}: a static pool of {wanted} B is {percent}% of the memory and leaves nothing for other "
                "traffic. Way out: lower switch.shared_buffer_bytes, or set switch.buffers to keep"
            )
        return percent

    def render(self, plan: Plan) -> dict[str, str]:
        lines = [f"nv set {' '.join(path)} {value}" for path, value in _leaves(self.tree(plan))]
        return {"cumulus.apply.sh": "\n".join(["#!/bin/sh", "set -eu", *lines]) + "\n"}

    def undo(self, plan: Plan) -> dict[str, str]:
        lines = [f"nv unset {' '.join(path)}" for path, _ in _leaves(self.tree(plan))]
        return {"cumulus.undo.sh": "\n".join(["#!/bin/sh", "set -eu", *reversed(lines)]) + "\n"}

    def read_tree(self, files: Mapping[str, str], reading: Reading | None = None) -> Tree:
        """``nv set`` lines back into a tree, ranges written out; numbers become int."""
        tree: Tree = {}
        reading = reading or Reading()
        for name, text in files.items():
            for number, line in code_lines(text, self.comment):
                where, words = f"{name}:{number}", line.split()
                if line == "set -eu":
                    continue
                if not reading.strict and words[:3] == ["nv", "set", "interface"] and len(words) > 3:
                    for port in _numbers(words[3]):
                        tree.setdefault("interface", {}).setdefault(port, {})
                qos = words[:2] == ["nv", "set"] and (words[2:3] == ["qos"] or words[4:5] == ["qos"])
                if not qos or len(words) < 5:
                    reading.foreign(self.fail(where, f"not an nv set line on qos: {line!r}"))
                    continue
                for path in _paths(words[2:-1]):
                    self._place(where, tree, path, words[-1])
        return tree

    def _place(self, where: str, tree: Tree, path: tuple[str, ...], value: str) -> None:
        node = tree
        for word in path[:-1]:
            node = node.setdefault(word, {})
            if not isinstance(node, dict):
                raise self.fail(where, f"{word!r} is a value already, not a section")
        node[path[-1]] = int(value) if value.isdigit() else value

    def parse(self, files: Mapping[str, str], reading: Reading | None = None) -> Behaviour:
        reading = reading or Reading()
        tree = self.read_tree(files, reading)
        result: dict[str, PortBehaviour] = {}
        self._others("qos", set(tree.get("qos", {})) - READ_GLOBALLY, reading)
        for port, entry in tree.get("interface", {}).items():
            if not reading.wants(port):
                continue
            self._others(f"interface {port} qos", set(entry.get("qos", {})) - {"congestion-control"}, reading)
            built = PortBuilder()
            for read in (self._queues, self._limits, self._detect):
                try:
                    read(built, tree.get("qos", {}), entry.get("qos", {}))
                except (KeyError, TypeError, ValueError) as error:
                    reading.unknown(self.fail(f"interface {port}", f"missing or dangling key {error}"))
                except ParseError as error:
                    reading.unknown(error)
            result[port] = built.build()
        return result

    def _others(self, where: str, names: set[str], reading: Reading) -> None:
        """Report unread statements: pauses stay; roce, a port's own mapping and the like may override mlt's."""
        for name in sorted(names):
            if name in PAUSES:
                reading.kept.append(f"{where} {name}: paused traffic waits where the policy means it to be dropped")
            else:
                reading.unknown(self.fail(where, f"{name!r} is not read here, and may overrule the policy"))

    def _queues(self, built: PortBuilder, qos: Tree, own: Tree) -> None:
        for number, entry in qos["egress-scheduler"][GLOBAL]["traffic-class"].items():
            built.present.add(int(number))
            if entry["mode"] not in ("strict", "dwrr"):
                raise self.fail(f"egress-scheduler {number}", f"mode {entry['mode']!r} is not strict or dwrr")
            if entry["mode"] == "dwrr":
                built.weights[int(number)] = entry["bw-percent"]
        mapping = qos["mapping"][GLOBAL]
        queue_of = qos["egress-queue-mapping"][GLOBAL]["switch-priority"]
        if mapping["trust"] not in ("l3", "both"):
            raise self.fail("qos mapping trust", f"{mapping['trust']!r}: DSCP is ignored unless it is l3")
        for dscp, entry in mapping["dscp"].items():
            built.dscp[int(dscp)] = queue_of[str(entry["switch-priority"])]["traffic-class"]

    def _limits(self, built: PortBuilder, qos: Tree, own: Tree) -> None:
        buffers = qos.get("advance-buffer-config", {}).get(GLOBAL, {})
        pools = buffers.get("egress-pool", {})
        # By default the device's own pool has all the memory.
        total = sum(pool.get("memory-percent", 0) for pool in {DEFAULT_POOL: {"memory-percent": 100}, **pools}.values())
        if pools and total > 100:
            raise self.fail("egress-pool", f"memory-percent of all pools is {total}; NVUE takes 100 at most")
        for number, entry in buffers.get("egress-lossy-buffer", {}).get("traffic-class", {}).items():
            if "shared-alpha" in entry:
                built.dynamic_limits[int(number)] = str(entry["shared-alpha"])
                continue
            if pools[str(entry["service-pool"])]["mode"] != "static":
                raise self.fail(f"traffic-class {number}", "shared-bytes needs a static pool")
            built.limits[int(number)] = entry["reserved"] + entry["shared-bytes"]

    def _detect(self, built: PortBuilder, qos: Tree, own: Tree) -> None:
        profile = own["congestion-control"]["profile"]
        built.random_detect = self._profile(profile, qos["congestion-control"][profile]["traffic-class"])

    def _profile(self, name: str, classes: Tree) -> dict[int, RandomDetect]:
        found = {}
        known = {"ecn", "red", "min-threshold", "max-threshold", "probability"}
        for number, entry in classes.items():
            where = f"congestion-control {name} traffic-class {number}"
            if set(entry) - known:
                raise self.fail(where, f"unknown keys {sorted(set(entry) - known)}")
            if entry["min-threshold"] > entry["max-threshold"] or not 0 < entry["probability"] <= 100:
                raise self.fail(
                    where, f"invalid thresholds or probability: {entry}; need min <= max and 0 < probability <= 100"
                )
            if {entry["ecn"], entry["red"]} - {"enable", "disable"}:
                raise self.fail(where, "ecn and red are enable or disable")
            found[int(number)] = RandomDetect(
                min_bytes=entry["min-threshold"],
                max_bytes=entry["max-threshold"],
                probability_percent=entry["probability"],
                mark_ect=entry["ecn"] == "enable",
                drop_not_ect=entry["red"] == "enable",
            )
        return found

    def parse_counters(self, text: str) -> list[QueueCounters]:
        rows, port, columns = [], "", []
        for line in text.splitlines():
            # NVIDIA's manual: indented under a title, cells of two words ("0 Bytes") separated by two blanks.
            cells = re.split(r"\s{2,}", line.strip())
            if "nv show interface" in line:
                port = line.split()[line.split().index("interface") + 1]
            elif cells[:1] == ["traffic-class"] or "tx-frames" in cells:
                columns = cells
            elif cells[0] and not cells[0].isdigit() and set(cells[0]) != {"-"}:
                columns = []  # another table begins
            elif columns and len(cells) == len(columns) and cells[0].isdigit():
                rows.append(queue_counters(port, cells[0], dict(zip(columns, cells, strict=True))))
        return merge(rows)


def queue_counters(port: str, queue: str, values: Mapping[str, str]) -> QueueCounters:
    """One traffic class of ``egress-queue-stats``; discards with a unit are bytes."""
    counted = {name: integer(values[column]) for column, name in _COLUMNS.items() if column in values}
    if (discards := _bytes(values.get("tx-uc-buffer-discards", ""))) is not None:
        counted |= {"dropped_at_limit": 0 if discards == 0 else None, "dropped_at_limit_bytes": discards}
    return QueueCounters(port=port, queue=int(queue), **counted)


def _bytes(cell: str) -> int | None:
    """``"9.98 KB"`` -> 9980; None where it has no unit."""
    if cell.strip().isdecimal():  # of packets
        return None
    try:
        return round(SIZE.read(cell.replace("Bytes", "B")))
    except ValueError:
        return None


def _numbers(word: str) -> tuple[str, ...]:
    """``"swp1-3,5"`` -> swp1, swp2, swp3, swp5; ``"0-7"`` and ``"10,20"`` alike; any other word is itself."""
    match = re.fullmatch(r"([a-z]*)((?:\d+(?:-\d+)?,)*\d+(?:-\d+)?)", word)
    if match is None:
        return (word,)
    found: list[str] = []
    for part in match[2].split(","):
        first, _, last = part.partition("-")
        found += [f"{match[1]}{number}" for number in range(int(first), int(last or first) + 1)]
    return tuple(found)


def _paths(words: list[str]) -> Iterator[tuple[str, ...]]:
    return product(*(_numbers(word) for word in words))


def _leaves(tree: Tree, path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], Any]]:
    found: list[tuple[tuple[str, ...], Any]] = []
    for key, value in tree.items():
        if isinstance(value, dict):
            found += _leaves(value, (*path, key))
        else:
            found.append(((*path, key), value))
    return found


TARGET = Cumulus()
