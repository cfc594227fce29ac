"""NVIDIA Cumulus Linux 5.x, as ``nv set`` lines.

Syntax: Cumulus Linux 5.9 documentation (Quality of Service) and the published NVUE schema. ``ecn enable`` alone marks
and leaves drops to a full buffer; ``red enable`` is the second switch that drops Not-ECT.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from mlt.switch_configs.behaviour import Behaviour, RandomDetect
from mlt.switch_configs.capabilities import Capabilities, Feature, Support
from mlt.switch_configs.counters import QueueCounters, integer, merge
from mlt.switch_configs.plan import Plan
from mlt.switch_configs.target import PortBuilder, Procedure, Target, Unconfirmed, code_lines

GLOBAL = "default-global"
STEP_BYTES = 1024
RESERVED_BYTES = 1500
STATIC_POOL = 2
Tree = dict[str, Any]


class Cumulus(Target):
    """One tree of keys; the traffic class is the queue, the highest served first."""

    name: ClassVar[str] = "cumulus"
    title: ClassVar[str] = "NVIDIA Cumulus Linux 5.5 or later (NVUE)"
    comment: ClassVar[str] = "#"
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
    unconfirmed: ClassVar[tuple[Unconfirmed, ...]] = (
        Unconfirmed(
            r"advance-buffer-config", "a static egress pool with shared-bytes per class (in schema, not tried)"
        ),
    )

    def native_port(self, label: str) -> str:
        return f"swp{label}" if label.isdigit() else label

    def tree(self, plan: Plan) -> Tree:
        """The configuration as NVUE's tree of keys (what the schema judges)."""
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
                    "egress-pool": {str(STATIC_POOL): {"mode": "static", "memory-percent": 100}},
                    "egress-lossy-buffer": {"traffic-class": limits},
                }
            }
        interfaces = {port: {"qos": {"congestion-control": {"profile": profile}}} for port in plan.ports}
        return {"qos": qos, "interface": interfaces}

    def render(self, plan: Plan) -> dict[str, str]:
        lines = [f"nv set {' '.join(path)} {value}" for path, value in _leaves(self.tree(plan))]
        return {"cumulus.apply.sh": "\n".join(["#!/bin/sh", "set -eu", *lines]) + "\n"}

    def undo(self, plan: Plan) -> dict[str, str]:
        lines = [f"nv unset {' '.join(path)}" for path, _ in _leaves(self.tree(plan))]
        return {"cumulus.undo.sh": "\n".join(["#!/bin/sh", "set -eu", *reversed(lines)]) + "\n"}

    def read_tree(self, files: Mapping[str, str]) -> Tree:
        """``nv set`` lines back into a tree; numbers become int."""
        tree: Tree = {}
        for name, text in files.items():
            for number, line in code_lines(text, self.comment):
                if line == "set -eu":
                    continue
                words = line.split()
                if words[:2] != ["nv", "set"] or len(words) < 5:
                    raise self.fail(f"{name}:{number}", f"not an nv set line: {line!r}")
                node = tree
                for word in words[2:-2]:
                    node = node.setdefault(word, {})
                    if not isinstance(node, dict):
                        raise self.fail(f"{name}:{number}", f"{word!r} is a value already, not a section")
                node[words[-2]] = int(words[-1]) if words[-1].isdigit() else words[-1]
        return tree

    def parse(self, files: Mapping[str, str]) -> Behaviour:
        tree = self.read_tree(files)
        try:
            qos = tree["qos"]
            mapping = qos["mapping"][GLOBAL]
            queue_of = qos["egress-queue-mapping"][GLOBAL]["switch-priority"]
            schedulers = qos["egress-scheduler"][GLOBAL]["traffic-class"]
            if mapping["trust"] != "l3":
                raise self.fail("qos mapping trust", f"{mapping['trust']!r}: DSCP is ignored unless it is l3")
            common = PortBuilder()
            for dscp, entry in mapping["dscp"].items():
                common.dscp[int(dscp)] = queue_of[str(entry["switch-priority"])]["traffic-class"]
            for number, entry in schedulers.items():
                common.present.add(int(number))
                if entry["mode"] not in ("strict", "dwrr"):
                    raise self.fail(f"egress-scheduler {number}", f"mode {entry['mode']!r} is not strict or dwrr")
                if entry["mode"] == "dwrr":
                    common.weights[int(number)] = entry["bw-percent"]
            buffers = qos.get("advance-buffer-config", {}).get(GLOBAL, {})
            for number, entry in buffers.get("egress-lossy-buffer", {}).get("traffic-class", {}).items():
                if buffers["egress-pool"][str(entry["service-pool"])]["mode"] != "static":
                    raise self.fail(f"traffic-class {number}", "shared-bytes needs a static pool")
                common.limits[int(number)] = entry["reserved"] + entry["shared-bytes"]
            result = {}
            for port, entry in tree.get("interface", {}).items():
                profile = entry["qos"]["congestion-control"]["profile"]
                common.random_detect = self._profile(profile, qos["congestion-control"][profile]["traffic-class"])
                result[port] = common.build()
        except (KeyError, TypeError, ValueError) as error:
            raise self.fail("configuration", f"missing or dangling key {error}") from error
        return result

    def _profile(self, name: str, classes: Tree) -> dict[int, RandomDetect]:
        found = {}
        known = {"ecn", "red", "min-threshold", "max-threshold", "probability"}
        for number, entry in classes.items():
            where = f"congestion-control {name} traffic-class {number}"
            if set(entry) - known:
                raise self.fail(where, f"unknown keys {sorted(set(entry) - known)}")
            if entry["min-threshold"] > entry["max-threshold"] or not 0 < entry["probability"] <= 100:
                raise self.fail(where, f"thresholds or probability make no sense: {entry}")
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
        fields = {"tx-frames": "sent", "tx-uc-buffer-discards": "dropped_at_limit", "wred-discards": "dropped_early",
                  "ecn-marked-packets": "marked"}  # fmt: skip
        for line in text.splitlines():
            cells = line.split()
            if "nv show interface" in line:
                port = cells[cells.index("interface") + 1]
            elif cells[:1] == ["traffic-class"] or "tx-frames" in cells:
                columns = cells
            elif columns and len(cells) == len(columns) and cells[0].isdigit():
                values = dict(zip(columns, cells, strict=True))
                counted = {name: integer(values[column]) for column, name in fields.items() if column in values}
                rows.append(QueueCounters(port=port, queue=int(cells[0]), **counted))
        return merge(rows)


def _leaves(tree: Tree, path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], Any]]:
    found: list[tuple[tuple[str, ...], Any]] = []
    for key, value in tree.items():
        if isinstance(value, dict):
            found += _leaves(value, (*path, key))
        else:
            found.append(((*path, key), value))
    return found


TARGET = Cumulus()
