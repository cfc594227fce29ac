"""Capabilities of a target, as data. The generator rejects policies by this data only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Literal

from mlt.switch_configs.platforms import Platform

AboveMax = Literal["mark", "drop", "unknown"]


class Feature(str, Enum):
    """Features that a policy may require of a target. The values are the keys of the policy's ``accept``."""

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
    """``level``: yes, unconfirmed (syntax exists, but no vendor document or device confirms it), or no."""

    level: Literal["yes", "unconfirmed", "no"]
    why: str
    way_out: str = ""


@dataclass(frozen=True, kw_only=True)
class Capabilities:
    """Capabilities of one target.

    ``threshold_unit_bytes``: granularity of thresholds; None means whole percent of ``queue_memory_bytes``.
    ``limit_unit_bytes``: granularity of limits, same convention.
    ``step_gap_bytes``: the min max - min that the target accepts; 0 where max = min is accepted.
    ``buffers_apart``: limits are in pools and profiles of the whole switch; written only if the policy requires it.
    ``strict_queues``: max number of strict queues; None where unknown.
    ``above_max_ect``: action on an ECN-capable packet above max. Anything but "mark" makes a step at S_i drop important
    packets; there max becomes L_i, and the policy must accept ``step-threshold``.
    """

    max_queues: int = 8
    threshold_unit_bytes: int | None = 1
    limit_unit_bytes: int | None = 1
    step_gap_bytes: int = 0
    buffers_apart: bool = False
    strict_queues: int | None = None
    above_max_ect: AboveMax = "mark"
    above_max_source: str = ""
    support: Mapping[Feature, Support] = field(default_factory=dict)

    def of(self, feature: Feature) -> Support:
        """The support of a feature; a target without a statement does not support it."""
        return self.support.get(feature, Support("no", "this target says nothing about it"))

    def on(self, platform: Platform) -> Capabilities:
        """These capabilities on one platform; the platform's facts take precedence."""
        facts, support = platform.facts, dict(self.support)
        instead = "" if facts.instead is None else facts.instead.value
        if (not_ect := facts.not_ect) is not None and platform.known:
            if not_ect.value == "drop" and not_ect.confirmed:
                support[Feature.SELECTIVE_DROP] = Support("yes", f"{platform.title}: {not_ect.source}")
            elif not_ect.value == "tail-drop":
                support[Feature.SELECTIVE_DROP] = Support(
                    "no", f"{platform.title} drops Not-ECT only when the queue is full ({not_ect.source})", instead
                )
        above, above_source = self.above_max_ect, self.above_max_source
        if facts.ect_above_max is not None:
            above, above_source = facts.ect_above_max.value, f"{platform.title}: {facts.ect_above_max.source}"
            if above != "mark" and self.of(Feature.STEP_THRESHOLD).level != "no":
                why = f"ECT above the maximum: {above} ({above_source}), so the ramp ends at L"
                support[Feature.STEP_THRESHOLD] = Support("no", why)
        strict = facts.strict_queues
        return replace(
            self,
            support=support,
            above_max_ect=above,
            above_max_source=above_source,
            max_queues=self.max_queues if facts.queues is None else min(self.max_queues, facts.queues.value),
            strict_queues=None if strict is None else strict.value,
        )
