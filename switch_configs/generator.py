"""Turns a policy into files: checks, plans, renders, reads back and compares before it returns anything."""

from __future__ import annotations

from dataclasses import dataclass, replace

from mlt.switch_configs.behaviour import Behaviour, Difference, against_device, differences
from mlt.switch_configs.capabilities import Feature
from mlt.switch_configs.errors import ParseError, SwitchConfigError, not_json
from mlt.switch_configs.plan import Plan, plan_for
from mlt.switch_configs.platforms import parse_spec
from mlt.switch_configs.policy import Policy
from mlt.switch_configs.registry import target as find_target
from mlt.switch_configs.semantics import require_sound
from mlt.switch_configs.target import Reading, Target, decorate, header_lines

from mlt._shared.structured_text import SyntaxProblem, parse_json


@dataclass(frozen=True, kw_only=True)
class Generated:
    """One target's files. ``apply`` and ``undo``: name -> text, headers included."""

    target: Target
    plan: Plan
    apply: dict[str, str]
    undo: dict[str, str]

    @property
    def behaviour(self) -> Behaviour:
        """The behaviour of the written text, read back from it."""
        return self.target.parse(self.apply)


def plan(policy: Policy, target: Target, *, ports: tuple[str, ...] | None = None, running: bool = False) -> Plan:
    """The policy resolved for one target; ``running``: the ports are those of its configuration. Raises
    CannotExpressError."""
    return plan_for(
        policy,
        spec=target.spec,
        platform=target.platform,
        capabilities=target.able,
        native_port=target.native_port,
        port_problem=(lambda _: None) if running else target.port_problem,
        ports=ports,
    )


def device(policy: Policy, text: str) -> Target:
    """The target of ``text``; a bare system name means the device in the policy's ``targets`` for it."""
    named = next((spec for spec in policy.targets if parse_spec(spec).system == text), text)
    return find_target(named)


def generate(
    policy: Policy, target_name: str, *, ports: tuple[str, ...] | None = None, running: str | None = None
) -> Generated:
    """Write one target's configuration, for one device's ``running`` configuration if given.

    Raises PolicyError or CannotExpressError before anything is written, and SwitchConfigError if the text has another
    behaviour than the policy (a defect of the generator).
    """
    require_sound(policy, source=f"policy {policy.name}")
    target = device(policy, target_name)
    resolved = plan(policy, target, ports=ports, running=running is not None)
    if running is None:
        apply, undo = target.render(resolved), target.undo(resolved)
    else:
        apply, undo, notes = target.against(resolved, running)
        resolved = replace(resolved, notes=(*resolved.notes, *notes))
    generated = Generated(
        target=target,
        plan=resolved,
        apply=_with_headers(target, resolved, apply),
        undo=_with_headers(target, resolved, undo),
    )
    wrong = differences(resolved.intended(), generated.behaviour)
    if wrong:
        details = "; ".join(str(difference) for difference in wrong[:5])
        raise SwitchConfigError(f"{target.name}: generated text does not mean the policy (please report): {details}")
    return generated


def _with_headers(target: Target, resolved: Plan, files: dict[str, str]) -> dict[str, str]:
    """Headers as comments; JSON has no comments, so its header is a separate file."""
    written = {}
    plain = ""
    for name, text in files.items():
        if name.endswith(".json"):
            plain += text
            written[name] = text
        elif name.endswith(".c"):
            written[name] = text
        else:
            written[name] = decorate(target, resolved, text, files)
    if plain:
        written["README.txt"] = "\n".join(header_lines(target, resolved, plain, files)) + "\n"
    return written


def compare_device(ours: Generated, text: str, *, name: str) -> tuple[list[Difference], Reading]:
    """Differences between ``ours`` and the device of ``text``, on its ports.

    Raises SwitchConfigError if ``text`` is not of this system. ``name`` is the device's name in messages.
    """
    _is_whole(ours.target, text, name)
    reading = Reading(
        strict=False, ports=ours.plan.ports, queue_memory_bytes=ours.plan.policy.switch.queue_memory_bytes
    )
    known = ours.target.whole_json or name
    try:
        theirs = ours.target.parse({known: text}, reading)
    except ParseError as error:
        raise ParseError(error.target, error.where.replace(known, name), error.cause) from error
    limits = any(queue.limit_bytes is not None for queue in ours.plan.queues)
    return against_device(ours.behaviour, theirs, limits=limits), reading


def _is_whole(target: Target, text: str, name: str) -> None:
    """Raises SwitchConfigError if ``text`` is JSON for a system without JSON, or the reverse."""
    wanted = f"'mlt switch diff -t {target.name}' reads {target.whole}"
    if not text.strip():
        raise SwitchConfigError(f"{name}: empty; {wanted}")
    try:
        found = parse_json(text)
    except SyntaxProblem as error:
        if target.whole_json:
            raise SwitchConfigError(f"{name}: {not_json(text, error)}; {wanted}") from error
        return
    if not target.whole_json:
        raise SwitchConfigError(f"{name}: it is JSON; {wanted}")
    if not isinstance(found, dict) or not all(isinstance(part, dict) for part in found.values()):
        raise SwitchConfigError(f"{name}: JSON, but not an object of objects; {wanted}")


def neutral(generated: Generated) -> Behaviour:
    """The behaviour with the policy's own port labels, comparable between targets."""
    native = generated.behaviour
    return {label: native[port] for label, port in zip(generated.plan.labels, generated.plan.ports, strict=True)}


_EXCUSES = {
    Feature.QUEUE_LIMIT: {"queue-limit"},
    Feature.STEP_THRESHOLD: {"max-threshold"},
    Feature.SELECTIVE_DROP: {"mark-ect", "drop-not-ect"},
    Feature.STRICT_PRIORITY: {"scheduling"},
    Feature.WEIGHTED: {"scheduling"},
    Feature.FAIR: {"scheduler-group", "group-weights", "scheduling"},
}


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Differences between two targets. ``accepted``: by the policy, for one of them. ``near``: thresholds within twice
    the rounding tolerance (each side may round once) or within the min gap between min and max of a target."""

    unexplained: tuple[Difference, ...]
    accepted: tuple[Difference, ...]
    near: tuple[Difference, ...]


def compare(left: Generated, right: Generated) -> Comparison:
    """Compare the behaviours of two targets under one policy."""
    excused: set[str] = set()
    for generated in (left, right):
        for feature, _ in generated.plan.accepted:
            excused |= _EXCUSES.get(feature, set())
    tolerance = 2 * left.plan.policy.rounding_tolerance_percent
    unexplained: list[Difference] = []
    accepted: list[Difference] = []
    close: list[Difference] = []
    gap = max(side.target.platform.red_bytes(side.target.able.step_gap_bytes) for side in (left, right))
    for difference in differences(neutral(left), neutral(right), tolerance_percent=tolerance):
        near = difference.feature == "max-threshold" and _bytes_apart(difference) <= gap + _slack(left, right)
        (close if near else accepted if difference.feature in excused else unexplained).append(difference)
    return Comparison(unexplained=tuple(unexplained), accepted=tuple(accepted), near=tuple(close))


def _bytes_apart(difference: Difference) -> int:
    return abs(int(difference.left.split()[0]) - int(difference.right.split()[0]))


def _slack(left: Generated, right: Generated) -> float:
    lows = [
        queue.random_detect.min_bytes
        for generated in (left, right)
        for queue in generated.plan.queues
        if queue.random_detect is not None
    ]
    return max(lows, default=0) * 2 * left.plan.policy.rounding_tolerance_percent / 100
