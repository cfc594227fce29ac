"""The rules that a policy must keep on any switch; no vendor's schema contains them.

Source: paper, sections 4.2.2 and 5.2 and appendix B: thresholds rise as priority falls, S_i < L_i <= buffer, the
control class has no RED, mark and drop act together.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from mlt.switch_configs.errors import PolicyError, SwitchConfigError
from mlt.switch_configs.policy import Policy

from mlt._shared.similar_names import did_you_mean


@dataclass(frozen=True)
class Finding:
    """One violated rule (error) or remark (warning)."""

    severity: Literal["error", "warning"]
    rule: str
    where: str
    message: str

    @property
    def is_invalid(self) -> bool:
        """Whether the policy has a value that names nothing, so that no target can be checked."""
        return self.severity == "error" and self.rule in ("known-target", "ports")

    def __str__(self) -> str:
        return f"{self.where}: {self.message} [{self.rule}]"


def _code_points(policy: Policy) -> list[Finding]:
    owners: dict[int, str] = {}
    found = []
    named = [("control.dscp", policy.control.dscp)]
    named += [(f"control.extra_dscp[{index}]", dscp) for index, dscp in enumerate(policy.control.extra_dscp)]
    named += [(f"data[{index}].dscp", data.dscp) for index, data in enumerate(policy.data)]
    for where, dscp in named:
        if dscp in owners:
            found.append(
                Finding(
                    "error", "dscp-once", where, f"DSCP {dscp} already belongs to {owners[dscp]}; choose a free one"
                )
            )
        if dscp == 0:
            found.append(
                Finding("error", "dscp-default", where, "DSCP 0 is what foreign traffic carries; choose another")
            )
        owners.setdefault(dscp, where)
    return found


def _thresholds(policy: Policy) -> list[Finding]:
    found = []
    buffer, packet = policy.switch.shared_buffer_bytes, policy.switch.packet_bytes
    for index, data in enumerate(policy.data):
        where = f"data[{index}]"
        low, limit = data.wred.min_threshold_bytes, data.limit_bytes
        if low >= limit:
            found.append(
                Finding(
                    "error", "s-below-l", where, f"S = {low} B must lie below L = {limit} B, or nothing is selective"
                )
            )
        if limit > buffer:
            found.append(
                Finding("error", "l-within-buffer", where, f"L = {limit} B exceeds the shared buffer of {buffer} B")
            )
        if low < packet:
            found.append(
                Finding("error", "s-holds-a-packet", where, f"S = {low} B is less than one packet of {packet} B")
            )
        if not (data.wred.enable_ecn and data.wred.drop):
            missing = "enable_ecn" if not data.wred.enable_ecn else "drop"
            found.append(
                Finding(
                    "error", "mark-and-drop", f"{where}.wred", f"{missing} is false: both must be true (section 5.2)"
                )
            )
        if data.wred.max_drop_probability_percent < 100:
            found.append(
                Finding(
                    "warning",
                    "certain-drop",
                    f"{where}.wred",
                    f"above S only {data.wred.max_drop_probability_percent}% of Not-ECT packets are dropped",
                )
            )
    for index, (upper, lower) in enumerate(pairwise(policy.data)):
        where = f"data[{index + 1}]"
        for rule, name, high, low in (
            ("s-rising", "S", upper.wred.min_threshold_bytes, lower.wred.min_threshold_bytes),
            ("l-rising", "L", upper.limit_bytes, lower.limit_bytes),
        ):
            if low < high or (low == high and rule == "s-rising"):
                found.append(
                    Finding("error", rule, where, f"{name} = {low} B must exceed the class above it ({high} B)")
                )
    total = sum(data.limit_bytes for data in policy.data)
    if total > buffer:
        found.append(
            Finding(
                "warning", "l-oversubscribed", "data", f"limits add up to {total} B on one port, buffer is {buffer} B"
            )
        )
    return found


def _accepted_targets(policy: Policy) -> list[Finding]:
    """Finds an ``accept`` for an unknown target, which would have no effect."""
    from mlt.switch_configs.platforms import parse_spec
    from mlt.switch_configs.registry import targets

    found = []
    for where, names in (("accept", policy.accept), ("targets", policy.targets)):
        for name in names:
            try:
                known = parse_spec(name).system in targets()
            except SwitchConfigError:
                known = False
            if not known:
                meant = did_you_mean(name, list(targets()))
                message = f"{where} names unknown target {name!r}; available: {', '.join(targets())}{meant}"
                found.append(Finding("error", "known-target", f"{where}.{name}", message))
    return found


def findings(policy: Policy) -> list[Finding]:
    """Every violated rule and every warning, in file order."""
    found = _code_points(policy) + _thresholds(policy)
    free = policy.switch.queues - 2
    if len(policy.data) > free:
        found.append(
            Finding(
                "error",
                "enough-queues",
                "data",
                f"{len(policy.data)} data classes, but {policy.switch.queues} queues less control and default: {free}",
            )
        )
    names = [data.name for data in policy.data]
    for name in sorted({name for name in names if names.count(name) > 1} | ({"control", "default"} & set(names))):
        found.append(Finding("error", "names-once", "data", f"class name {name!r} is taken"))
    if policy.default.sharing == "weighted":
        found.append(
            Finding(
                "warning", "no-strict-priority", "default", "weighted sharing has no strict priority of front layers"
            )
        )
    found += _accepted_targets(policy)
    try:
        policy.ports()
    except ValueError as error:
        found.append(Finding("error", "ports", "switch.ports", str(error)))
    return found


def require_sound(policy: Policy, *, source: str) -> None:
    """Raise PolicyError with every error among ``findings``; warnings pass."""
    problems = [str(finding) for finding in findings(policy) if finding.severity == "error"]
    if problems:
        raise PolicyError(source, problems)
