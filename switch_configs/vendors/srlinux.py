"""Nokia SR Linux: leaves, capabilities and counters; everything else is in ``leaf_target``.

Syntax: SR Linux 25.10 YANG paths as public configurations use them (queue-management-profile, wred-slope,
scheduler-policy). ``enable-ecn`` makes a slope mark; whether Not-ECT is dropped there is not documented.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import ClassVar

from mlt.switch_configs.capabilities import Capabilities, Feature, Support
from mlt.switch_configs.counters import COUNTS, QueueCounters, integer, merge
from mlt.switch_configs.leaf_target import LeafTarget
from mlt.switch_configs.target import Procedure, Unconfirmed

_SLOPE = (
    "buffer-management queue-management-profile {profile} wred wred-slope traffic-type all drop-probability all "
    "enable-ecn true "
)


class SrLinux(LeafTarget):
    """Queue unicast-N serves forwarding class fcN; the scheduler of the lowest sequence is served first."""

    name: ClassVar[str] = "srlinux"
    title: ClassVar[str] = "Nokia SR Linux"
    comment: ClassVar[str] = "#"
    whole: ClassVar[str] = "what 'info flat from running' prints"
    qos_sections: ClassVar[re.Pattern[str]] = re.compile(r"set / qos ")
    write: ClassVar[str] = "set / qos {leaf}"
    remove: ClassVar[str] = "delete / qos {leaf}"
    leaves: ClassVar[Mapping[str, str]] = {
        "dscp": "classifiers dscp-policy {name} dscp {dscp} forwarding-class fc{queue}",
        "strict": "scheduler-policies scheduler-policy {name} scheduler {order} priority strict",
        "weight": "scheduler-policies scheduler-policy {name} scheduler {order} input unicast-{queue} weight {value}",
        "minimum": _SLOPE + "min-threshold-percent {value}",
        "maximum": _SLOPE + "max-threshold-percent {value}",
        "probability": _SLOPE + "max-drop-probability-percent {value}",
        "classifier": "interfaces interface {port} input classifiers dscp-policy {name}",
        "scheduler": "interfaces interface {port} output scheduler scheduler-policy {name}",
        "profile": "interfaces interface {port} output queues queue unicast-{queue} queue-management-profile {profile}",
    }
    capabilities: ClassVar[Capabilities] = Capabilities(
        threshold_unit_bytes=None,
        above_max_ect="unknown",
        above_max_source="no document found on ECT above the maximum",
        support={
            Feature.SELECTIVE_DROP: Support("unconfirmed", "a slope with enable-ecn; what Not-ECT meets there"),
            Feature.STRICT_PRIORITY: Support("unconfirmed", "priority strict per scheduler sequence"),
            Feature.ECN_ON_STRICT: Support("unconfirmed", "the slope belongs to the queue"),
            Feature.WEIGHTED: Support("yes", "weight of a scheduler's input"),
            Feature.STEP_THRESHOLD: Support("no", "ECT above the maximum is undocumented, so the ramp ends at L"),
            Feature.QUEUE_LIMIT: Support("no", "maximum-burst-size belongs to the platform's buffer profiles"),
            Feature.FAIR: Support("no", "one scheduler level is written", "set default.sharing: weighted"),
        },
    )
    procedure: ClassVar[Procedure] = Procedure(
        apply=("enter candidate; paste this file; diff; commit confirmed timeout 300", "verify, then: commit now"),
        verify=("info from state qos interfaces interface PORT output queues   (UNCONFIRMED)",),
        undo=("enter candidate; paste the undo file; commit now",),
    )
    counts: ClassVar[frozenset[str]] = COUNTS - {"dropped_early"}
    unconfirmed: ClassVar[tuple[Unconfirmed, ...]] = (
        Unconfirmed(r"priority strict", "several strict schedulers, the lowest sequence first"),
        Unconfirmed(r"dscp-policy", "the leaves of a DSCP policy, and of binding policies to a port"),
        Unconfirmed(r"enable-ecn true", "that Not-ECT is dropped where ECT is marked"),
    )

    def native_port(self, label: str) -> str:
        return f"ethernet-1/{label}" if label.isdigit() else label

    def parse_counters(self, text: str) -> list[QueueCounters]:
        rows, port, queue = [], "", -1
        names = {"transmitted-packets": "sent", "dropped-packets": "dropped_at_limit", "ecn-marked-packets": "marked"}
        for line in text.splitlines():
            if match := re.match(r"\s*interface (\S+) \{", line):
                port = match[1]
            elif match := re.match(r"\s*queue unicast-(\d) \{", line):
                queue = int(match[1])
            elif queue >= 0 and (match := re.match(r"\s*([a-z-]+) (\d+)$", line)) and match[1] in names:
                rows.append(QueueCounters(port=port, queue=queue, **{names[match[1]]: integer(match[2])}))
        return merge(rows)


TARGET = SrLinux()
