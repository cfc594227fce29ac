"""What a target can express, as data. The generator reads it; nothing else decides what is refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal

AboveMax = Literal["mark", "drop", "unknown"]


class Feature(str, Enum):
    """The things a policy may ask of a target. The values are the keys of the policy's ``accept``."""

    SELECTIVE_DROP = "selective-drop"
    STEP_THRESHOLD = "step-threshold"
    QUEUE_LIMIT = "queue-limit"
    STRICT_PRIORITY = "strict-priority"
    ECN_ON_STRICT = "ecn-on-strict"
    WEIGHTED = "weighted"
    FAIR = "fair"

    def __str__(self) -> str:
        return self.value


MEANING: Mapping[Feature, str] = {
    Feature.SELECTIVE_DROP: "marking ECT and dropping Not-ECT above the same threshold",
    Feature.STEP_THRESHOLD: "a threshold that acts at once rather than on a ramp up to the queue's limit",
    Feature.QUEUE_LIMIT: "a limit L_i of its own for each queue",
    Feature.STRICT_PRIORITY: "strict priority between all queues",
    Feature.ECN_ON_STRICT: "ECN on a strict-priority queue",
    Feature.WEIGHTED: "weighted sharing between queues",
    Feature.FAIR: "fair sharing between model data and other traffic with strict priority inside model data",
}


@dataclass(frozen=True)
class Support:
    """``level``: yes, unconfirmed (syntax exists, no vendor document or device confirmed it), or no."""

    level: Literal["yes", "unconfirmed", "no"]
    why: str
    way_out: str = ""


@dataclass(frozen=True, kw_only=True)
class Capabilities:
    """One target's abilities.

    ``threshold_unit_bytes``: granularity of thresholds; None means whole percent of the shared buffer.
    ``limit_unit_bytes``: granularity of limits, same convention.
    ``step_gap_bytes``: the least max - min the target takes; 0 where max = min is accepted.
    ``above_max_ect``: what happens to an ECN-capable packet above max. Anything but "mark" makes a step at S_i drop
    important packets, so there max becomes L_i and the policy must accept ``step-threshold``.
    """

    max_queues: int = 8
    threshold_unit_bytes: int | None = 1
    limit_unit_bytes: int | None = 1
    step_gap_bytes: int = 0
    above_max_ect: AboveMax = "mark"
    above_max_source: str = ""
    support: Mapping[Feature, Support] = field(default_factory=dict)

    def of(self, feature: Feature) -> Support:
        """The statement about a feature; a target that says nothing about it does not have it."""
        return self.support.get(feature, Support("no", "this target says nothing about it"))
