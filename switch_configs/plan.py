"""A policy resolved for one target: native port names, queue numbers, thresholds in that target's units.

``plan_for`` makes every rejection, before a line is written. Sizes in bytes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise

from mlt.switch_configs.behaviour import Behaviour, PortBehaviour, QueueBehaviour, RandomDetect, Role
from mlt.switch_configs.capabilities import MEANING, Capabilities, Feature, Support
from mlt.switch_configs.errors import CannotExpressError, listed
from mlt.switch_configs.platforms import Platform, Spec, first_release, platforms
from mlt.switch_configs.policy import DSCP_VALUES, DataClass, Policy

# Ports of the largest chassis. Names up to this number are known, so others can be rejected.
MAX_PORTS = 1024


@dataclass(frozen=True, kw_only=True)
class PlannedQueue:
    """One queue with its class: the input of a vendor's ``render``."""

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
    """All data for ``render``. ``queues`` from the highest number down; ``ports`` are native names.

    ``accepted``: features that the target lacks or omits, with the policy's reason. ``notes``: remarks on the
    resolution itself (a threshold that the device rounds, an acceptance without effect).
    """

    policy: Policy
    ports: tuple[str, ...]
    labels: tuple[str, ...]
    queues: tuple[PlannedQueue, ...]
    group_weights: dict[str, int]
    accepted: tuple[tuple[Feature, str], ...]
    notes: tuple[str, ...] = ()

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
        """The intended behaviour of the written configuration, with native port names."""
        queues = tuple(queue.behaviour for queue in reversed(self.queues))
        port = PortBehaviour(dscp_to_queue=self.dscp_to_queue(), queues=queues, group_weights=dict(self.group_weights))
        return dict.fromkeys(self.ports, port)


def shares(total: int, parts: int) -> tuple[int, ...]:
    """Split ``total`` percent over ``parts`` classes in the ratio parts : ... : 1, each 1 or more, summing exactly."""
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
    """Reads the policy once and collects every problem instead of stopping at the first."""

    policy: Policy
    spec: Spec
    platform: Platform
    capabilities: Capabilities
    problems: list[str] = field(default_factory=list)
    accepted: list[tuple[Feature, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    asked: set[Feature] = field(default_factory=set)

    def acceptances(self) -> dict[str, str]:
        """The policy's ``accept`` for this device: the system's entry, then the platform's and the release's."""
        bare = Spec(self.spec.system)
        keys = (bare, replace(bare, platform=self.spec.platform), replace(bare, release=self.spec.release), self.spec)
        merged: dict[str, str] = {}
        for key in dict.fromkeys(str(key) for key in keys):
            merged |= self.policy.accept.get(key, {})
        return merged

    def has(self, feature: Feature) -> bool:
        """True if the target supports it and the policy wants it; otherwise records an acceptance or a problem."""
        self.asked.add(feature)
        support = self.capabilities.of(feature)
        why = self.acceptances().get(feature.value)
        if why is not None and support.level != "yes":
            if (feature, why) not in self.accepted:
                self.accepted.append((feature, why))
            return False
        if support.level != "no":
            return True
        way_out = support.way_out or "choose another target"
        problem = (
            f"cannot express {feature} ({MEANING[feature]}): {support.why}. Way out: {way_out}; or, if you can live "
            f"without it there, write accept: {{{self.spec.system}: {{{feature}: <reason>}}}} in the policy"
        )
        if problem not in self.problems:  # every class checks this
            self.problems.append(problem)
        return False

    def check_acceptances(self) -> None:
        """Ignore no ``accept`` silently: an unknown feature is a problem, an accept without effect gets a note."""
        known = {feature.value for feature in Feature}
        effective = {feature.value for feature, _ in self.accepted}
        for name in self.acceptances():
            if name not in known:
                self.problems.append(f"accept names {name!r}; the features are {', '.join(sorted(known))}")
            elif Feature(name) not in self.asked:
                self.notes.append(f"accept {name}: without effect: this policy does not use it here")
            elif name not in effective:
                self.notes.append(f"accept {name}: without effect, {self.platform.title} has it and it is written")

    def check_device(self) -> None:
        """Problems of the platform and the release that do not depend on the classes."""
        if self.platform.needs_platform and not self.platform.known:
            self.problems.append(
                f"needs a platform: {self.platform.needs_platform}. Way out: --target {self.spec.system}@PLATFORM, one "
                f"of {', '.join(platforms(self.spec.system))}"
            )
        first = first_release(self.spec.system)
        if first is not None and self.spec.release is not None and _older(self.spec.release, first.value):
            self.problems.append(
                f"release {self.spec.release} is older than {first.value} ({first.source}). Way out: upgrade the switch"
            )
        switch, buffer = self.policy.switch, self.platform.facts.buffer_bytes
        if self.platform.known and buffer is not None and switch.shared_buffer_bytes > buffer.value:
            self.problems.append(
                f"switch.shared_buffer_bytes is {switch.shared_buffer_bytes} B, {self.platform.title} has "
                f"{buffer.value} B for one queue at most ({buffer.source}). Way out: lower it, and the limits with it"
            )
        if switch.queues > self.capabilities.max_queues:
            self.problems.append(
                f"has {self.capabilities.max_queues} queues per port, the policy needs {switch.queues}. "
                f"Way out: set switch.queues to {self.capabilities.max_queues} and use fewer data classes"
            )

    def ports(
        self, labels: tuple[str, ...], native_port: Callable[[str], str], port_problem: Callable[[str], str | None]
    ) -> tuple[str, ...]:
        """Native names; a port that the platform lacks is a problem."""
        count = self.platform.port_count
        try:
            names = tuple(native_port(label) for label in labels)
        except ValueError as error:
            self.problems.append(str(error))
            return labels
        if count is not None:
            beyond = {native_port(str(number)) for number in range(count + 1, MAX_PORTS)}
            absent = [label for label in labels if native_port(label) in beyond]
            if absent:
                self.problems.append(
                    f"{self.platform.title} has {count} ports, not {listed(absent)}. Way out: --ports 1-{count}, or "
                    "name the ports"
                )
                return names
        if wrong := [problem for name in names if (problem := port_problem(name)) is not None]:
            self.problems.append(wrong[0] + (f" (and {len(wrong) - 1} more ports)" if len(wrong) > 1 else ""))
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            self.problems.append(f"ports named twice: {listed(repeated)}")
        return names

    def rounded(self, value: int, unit: int | None, what: str, *, detect: bool = False) -> int:
        """``value`` in the target's granularity and, for RED (``detect``), rounded as by the device; a change beyond
        the tolerance is a problem."""
        if unit is None:
            memory = self.policy.switch.queue_memory_bytes
            if memory is None:
                problem = (
                    "counts thresholds in percent of the queue's own memory, which the policy does not state. Way "
                    "out: write switch.queue_memory_bytes, what one queue may hold on this device"
                )
                if problem not in self.problems:
                    self.problems.append(problem)
                return value
            steps = max(1, round(value * 100 / memory))
            if steps > 99:
                self.problems.append(f"{what} = {value} B is {steps}% of the queue's {memory} B: it must be below 100%")
            result = round(steps * memory / 100)
            grain = f"whole percent of {memory} B"
        else:
            result = max(1, round(value / unit)) * unit
            grain = f"units of {unit} B"
        if detect and self.platform.red_unit_bytes > 1:
            result = self.platform.red_bytes(value if unit is not None else result)
            grain = self.platform.red_unit
        moved = abs(result - value) * 100 / value
        # Even an exact percent of an odd buffer is rounded, by less than a byte.
        if moved > self.policy.rounding_tolerance_percent and abs(result - value) > 1:
            enough = math.ceil(moved * 1e4) / 1e4  # what it names is enough
            self.problems.append(
                f"{what} = {value} B would become {result} B ({enough:g}% off): this target takes {grain}. Way out: "
                f"use a multiple of it, or set rounding_tolerance_percent to at least {enough:g}"
            )
        elif detect and result != value:
            self.notes.append(f"{what}: {value} B is {result} B here ({grain})")
        return result

    def random_detect(self, data: DataClass, *, selective: bool) -> RandomDetect:
        caps, unit = self.capabilities, self.capabilities.threshold_unit_bytes
        low = self.rounded(data.wred.min_threshold_bytes, unit, f"S of class {data.name}", detect=True)
        if caps.above_max_ect == "mark":
            high = self.platform.red_bytes(low + caps.step_gap_bytes)
        else:
            self.has(Feature.STEP_THRESHOLD)
            high = self.rounded(data.limit_bytes, unit, f"the ramp's end (L) of class {data.name}", detect=True)
        return RandomDetect(
            min_bytes=low,
            max_bytes=high,
            probability_percent=data.wred.max_drop_probability_percent,
            mark_ect=data.wred.enable_ecn,
            drop_not_ect=data.wred.drop and selective,
        )

    def collapse(self, queues: list[PlannedQueue]) -> None:
        """A problem if rounding merges two classes that the policy separates; no tolerance covers that."""
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


def _older(release: str, first: str) -> bool:
    """True where both are dotted numbers and ``release`` comes before ``first``."""
    try:
        return [int(part) for part in release.split(".")] < [int(part) for part in first.split(".")]
    except ValueError:
        return False


def _weights(policy: Policy, *, weighted: bool) -> tuple[dict[int, int], dict[str, int]]:
    """Queue index in ``data`` -> weight (with -1 for the default class), and the weights of scheduler groups."""
    default = policy.default
    other = 100 - default.dnn_share_percent
    if weighted:
        return dict(enumerate(shares(default.dnn_share_percent, len(policy.data)))) | {-1: other}, {}
    return {}, {"dnn": default.dnn_share_percent, "other": other} if default.sharing == "fair" else {}


def _with_strict_queues(capabilities: Capabilities, platform: Platform, policy: Policy) -> Capabilities:
    """Strict priority is missing if the platform has fewer strict queues than control and the data classes need."""
    needed = 1 if policy.default.sharing == "weighted" else len(policy.data) + 1
    has, fact = capabilities.strict_queues, platform.facts.strict_queues
    if has is None or fact is None or has >= needed:
        return capabilities
    fewer = f"use {has - 1} data classes at most" if has > 2 else "set default.sharing: weighted"
    instead = "" if platform.facts.instead is None else f"; or {platform.facts.instead.value}"
    missing = Support(
        "no", f"{platform.title}: {has} strict queue at once, {needed} are needed ({fact.source})", fewer + instead
    )
    return replace(capabilities, support={**capabilities.support, Feature.STRICT_PRIORITY: missing})


def _sharing(resolver: _Resolver) -> tuple[dict[int, int], dict[str, int]]:
    """Require the features of the policy's sharing; weights if the policy accepts missing strict priority."""
    policy = resolver.policy
    weighted = policy.default.sharing == "weighted"
    strict = resolver.has(Feature.STRICT_PRIORITY)
    resolver.has(Feature.WEIGHTED if weighted else Feature.ECN_ON_STRICT)
    if policy.default.sharing == "fair":
        resolver.has(Feature.FAIR)
    if not strict and resolver.capabilities.of(Feature.STRICT_PRIORITY).level == "no":
        weighted = True
    try:
        return _weights(policy, weighted=weighted)
    except ValueError as error:
        resolver.problems.append(f"default.dnn_share_percent: {error}")
        return {}, {}


def _writes_limits(resolver: _Resolver) -> bool:
    """True if L_i is written: into the whole switch's buffers only if the policy requires it."""
    limits = resolver.has(Feature.QUEUE_LIMIT)
    if limits and resolver.capabilities.buffers_apart and resolver.policy.switch.buffers == "keep":
        why = "switch.buffers is keep: the device's own pools and profiles stay, and bound the queues in place of L"
        resolver.accepted.append((Feature.QUEUE_LIMIT, why))
        return False
    return limits


def _queues(resolver: _Resolver) -> tuple[tuple[PlannedQueue, ...], dict[str, int]]:
    """Control on top, data below it in order, default at 0; also the weights of scheduler groups."""
    policy, capabilities = resolver.policy, resolver.capabilities
    weights, group_weights = _sharing(resolver)
    selective = resolver.has(Feature.SELECTIVE_DROP) or capabilities.of(Feature.SELECTIVE_DROP).level != "no"
    limits = _writes_limits(resolver)
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
        number, limit = top - 1 - index, None
        if limits:
            limit = resolver.rounded(data.limit_bytes, capabilities.limit_unit_bytes, f"L of class {data.name}")
        behaviour = QueueBehaviour(
            queue=number,
            weight_percent=weights.get(index),
            group=group,
            random_detect=resolver.random_detect(data, selective=selective),
            limit_bytes=limit,
        )
        queues.append(PlannedQueue(number=number, role="data", name=data.name, dscp=(data.dscp,), behaviour=behaviour))
    resolver.collapse(queues)
    last = QueueBehaviour(queue=0, weight_percent=weights.get(-1), group="other" if group == "dnn" else "port")
    queues.append(PlannedQueue(number=0, role="default", name="default", dscp=(), behaviour=last))
    return tuple(queues), group_weights


def plan_for(
    policy: Policy,
    *,
    spec: Spec,
    platform: Platform,
    capabilities: Capabilities,
    native_port: Callable[[str], str],
    port_problem: Callable[[str], str | None] = lambda _: None,
    ports: tuple[str, ...] | None = None,
) -> Plan:
    """Resolve ``policy`` for one device; raises CannotExpressError that lists everything the target cannot express."""
    able = _with_strict_queues(capabilities, platform, policy)
    resolver = _Resolver(policy=policy, spec=spec, platform=platform, capabilities=able)
    resolver.check_device()
    labels = ports if ports is not None else policy.ports()
    names = resolver.ports(labels, native_port, port_problem)
    queues, group_weights = _queues(resolver)
    resolver.check_acceptances()
    if resolver.problems:
        raise CannotExpressError(str(spec), resolver.problems)
    return Plan(
        policy=policy,
        ports=names,
        labels=labels,
        queues=queues,
        group_weights=group_weights,
        accepted=tuple(resolver.accepted),
        notes=tuple(resolver.notes),
    )
