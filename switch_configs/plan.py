"""A policy resolved for one target: native port names, queue numbers, thresholds in that target's units.

``plan_for`` is where every refusal happens, before a line is written. Sizes in bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

from mlt.switch_configs.behaviour import Behaviour, PortBehaviour, QueueBehaviour, RandomDetect, Role
from mlt.switch_configs.capabilities import MEANING, Capabilities, Feature
from mlt.switch_configs.errors import CannotExpressError
from mlt.switch_configs.policy import DSCP_VALUES, DataClass, Policy


@dataclass(frozen=True, kw_only=True)
class PlannedQueue:
    """One queue with its class: what a vendor's ``render`` writes."""

    number: int
    role: Role
    name: str
    dscp: tuple[int, ...]
    behaviour: QueueBehaviour

    @property
    def random_detect(self) -> RandomDetect | None:
        return self.behaviour.random_detect

    @property
    def limit_bytes(self) -> int | None:
        return self.behaviour.limit_bytes

    @property
    def weight_percent(self) -> int | None:
        return self.behaviour.weight_percent


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Everything ``render`` may use. ``queues`` from the highest number down; ``ports`` are native names."""

    policy: Policy
    ports: tuple[str, ...]
    labels: tuple[str, ...]
    queues: tuple[PlannedQueue, ...]
    group_weights: dict[str, int]
    accepted: tuple[tuple[Feature, str], ...]

    @property
    def name(self) -> str:
        return self.policy.name

    @property
    def default_queue(self) -> PlannedQueue:
        return self.queues[-1]

    def dscp_to_queue(self) -> tuple[int, ...]:
        table = [self.default_queue.number] * DSCP_VALUES
        for queue in self.queues:
            for dscp in queue.dscp:
                table[dscp] = queue.number
        return tuple(table)

    def intended(self) -> Behaviour:
        """What the written configuration must mean, under native port names."""
        queues = tuple(queue.behaviour for queue in reversed(self.queues))
        port = PortBehaviour(dscp_to_queue=self.dscp_to_queue(), queues=queues, group_weights=dict(self.group_weights))
        return dict.fromkeys(self.ports, port)


def shares(total: int, parts: int) -> tuple[int, ...]:
    """Split ``total`` percent over ``parts`` classes in the ratio parts : ... : 1, each at least 1, summing exactly."""
    if total < parts:
        raise ValueError(f"{total}% cannot be split over {parts} classes with at least 1% each")
    denominator = parts * (parts + 1) // 2
    exact = [(total - parts) * (parts - index) / denominator for index in range(parts)]
    result = [1 + int(value) for value in exact]
    by_remainder = sorted(range(parts), key=lambda index: (-(exact[index] % 1), index))
    for index in by_remainder[: total - sum(result)]:
        result[index] += 1
    return tuple(result)


@dataclass(frozen=True, kw_only=True)
class _Resolver:
    """Walks the policy once and collects every problem instead of stopping at the first."""

    policy: Policy
    target: str
    capabilities: Capabilities
    problems: list[str]
    accepted: list[tuple[Feature, str]]

    def has(self, feature: Feature) -> bool:
        """True where the target can do it; otherwise notes an acceptance or a problem."""
        support = self.capabilities.of(feature)
        if support.level != "no":
            return True
        why = self.policy.accept.get(self.target, {}).get(feature.value)
        if why is not None:
            if (feature, why) not in self.accepted:
                self.accepted.append((feature, why))
            return False
        way_out = support.way_out or "choose another target"
        problem = (
            f"cannot express {feature} ({MEANING[feature]}): {support.why}. Way out: {way_out}; or, if you can live "
            f"without it there, write accept: {{{self.target}: {{{feature}: <reason>}}}} in the policy"
        )
        if problem not in self.problems:  # every class asks
            self.problems.append(problem)
        return False

    def rounded(self, value: int, unit: int | None, what: str) -> int:
        """``value`` in the target's granularity; a move beyond the tolerance is a problem."""
        buffer = self.policy.switch.shared_buffer_bytes
        if unit is None:
            steps = max(1, round(value * 100 / buffer))
            result = round(steps * buffer / 100)
            grain = f"whole percent of {buffer} B"
        else:
            result = max(1, round(value / unit)) * unit
            grain = f"units of {unit} B"
        moved = abs(result - value) * 100 / value
        # An exact percent of an odd buffer still rounds by less than a byte.
        if moved > self.policy.rounding_tolerance_percent and abs(result - value) > 1:
            self.problems.append(
                f"{what} = {value} B would become {result} B ({moved:.1f}% off): this target takes {grain}. Way out: "
                f"use a multiple of it, or set rounding_tolerance_percent to at least {moved:.1f}"
            )
        return result

    def random_detect(self, data: DataClass) -> RandomDetect:
        caps, unit = self.capabilities, self.capabilities.threshold_unit_bytes
        low = self.rounded(data.wred.min_threshold_bytes, unit, f"S of class {data.name}")
        stepped = low + caps.step_gap_bytes
        if caps.above_max_ect == "mark":
            high = stepped
        else:
            self.has(Feature.STEP_THRESHOLD)
            high = self.rounded(data.limit_bytes, unit, f"the ramp's end (L) of class {data.name}")
        return RandomDetect(
            min_bytes=low,
            max_bytes=high,
            probability_percent=data.wred.max_drop_probability_percent,
            mark_ect=data.wred.enable_ecn,
            drop_not_ect=data.wred.drop,
        )

    def collapse(self, queues: list[PlannedQueue]) -> None:
        """Two classes the policy keeps apart must not become one through rounding; no tolerance covers that."""
        data = [queue for queue in queues if queue.role == "data"]
        for upper, lower in pairwise(data):
            if upper.random_detect is None or lower.random_detect is None:
                continue
            if upper.random_detect.min_bytes >= lower.random_detect.min_bytes:
                self.problems.append(
                    f"thresholds of classes {upper.name} and {lower.name} both become "
                    f"{lower.random_detect.min_bytes} B in this target's units: they collapse. "
                    f"Way out: move them further apart, or use a target with byte thresholds"
                )


def _weights(policy: Policy) -> tuple[dict[int, int], dict[str, int]]:
    """Queue index in ``data`` -> weight (with -1 for the default class), and the weights of scheduler groups."""
    default = policy.default
    if default.sharing == "lowest":
        return {}, {}
    other = 100 - default.dnn_share_percent
    if default.sharing == "fair":
        return {}, {"dnn": default.dnn_share_percent, "other": other}
    return dict(enumerate(shares(default.dnn_share_percent, len(policy.data)))) | {-1: other}, {}


def plan_for(
    policy: Policy,
    *,
    target: str,
    capabilities: Capabilities,
    native_port: Callable[[str], str],
    ports: tuple[str, ...] | None = None,
) -> Plan:
    """Resolve ``policy`` for one target; raises CannotExpressError listing everything the target cannot do."""
    labels = ports if ports is not None else policy.ports()
    resolver = _Resolver(policy=policy, target=target, capabilities=capabilities, problems=[], accepted=[])
    if policy.switch.queues > capabilities.max_queues:
        resolver.problems.append(
            f"has {capabilities.max_queues} queues per port, the policy asks for {policy.switch.queues}. "
            f"Way out: set switch.queues to {capabilities.max_queues} and use fewer data classes"
        )
    known = {feature.value for feature in Feature}
    for feature in policy.accept.get(target, {}):
        if feature not in known:
            resolver.problems.append(f"accept names {feature!r}; the features are {', '.join(sorted(known))}")
    resolver.has(Feature.SELECTIVE_DROP)
    resolver.has(Feature.STRICT_PRIORITY)
    if policy.default.sharing != "weighted":
        resolver.has(Feature.ECN_ON_STRICT)
    else:
        resolver.has(Feature.WEIGHTED)
    if policy.default.sharing == "fair":
        resolver.has(Feature.FAIR)
    limits = resolver.has(Feature.QUEUE_LIMIT)
    try:
        weights, group_weights = _weights(policy)
    except ValueError as error:
        resolver.problems.append(f"default.dnn_share_percent: {error}")
        weights, group_weights = {}, {}
    group = "dnn" if policy.default.sharing == "fair" else "port"

    top = policy.switch.queues - 1
    queues = [
        PlannedQueue(
            number=top,
            role="control",
            name="control",
            dscp=(policy.control.dscp, *policy.control.extra_dscp),
            behaviour=QueueBehaviour(queue=top, group=group),
        )
    ]
    for index, data in enumerate(policy.data):
        number = top - 1 - index
        limit = resolver.rounded(data.limit_bytes, capabilities.limit_unit_bytes, f"L of class {data.name}")
        behaviour = QueueBehaviour(
            queue=number,
            weight_percent=weights.get(index),
            group=group,
            random_detect=resolver.random_detect(data),
            limit_bytes=limit if limits else None,
        )
        queues.append(PlannedQueue(number=number, role="data", name=data.name, dscp=(data.dscp,), behaviour=behaviour))
    resolver.collapse(queues)
    queues.append(
        PlannedQueue(
            number=0,
            role="default",
            name="default",
            dscp=(),
            behaviour=QueueBehaviour(
                queue=0, weight_percent=weights.get(-1), group="other" if group == "dnn" else "port"
            ),
        )
    )
    if resolver.problems:
        raise CannotExpressError(target, resolver.problems)
    return Plan(
        policy=policy,
        ports=tuple(native_port(label) for label in labels),
        labels=labels,
        queues=tuple(queues),
        group_weights=group_weights,
        accepted=tuple(resolver.accepted),
    )
