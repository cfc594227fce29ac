"""Vendor-neutral behaviour of a port: configurations are compared by it.

Source: paper, sections 4.2.2 and 5.2. Queue numbers rise with priority on every target; sizes in bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

Role = Literal["control", "data", "default"]


@dataclass(frozen=True, kw_only=True)
class RandomDetect:
    """One queue's early detection: the probability rises from 0 at ``min_bytes`` to its maximum at ``max_bytes``."""

    min_bytes: int
    max_bytes: int
    probability_percent: int
    mark_ect: bool
    drop_not_ect: bool


@dataclass(frozen=True, kw_only=True)
class QueueBehaviour:
    """One egress queue. ``weight_percent`` None means strict priority; otherwise a share of ``group``'s bandwidth.

    ``dynamic_limit``: the device's own text for a limit that depends on the free buffer and is not a number of bytes.
    ``group`` names the scheduler level: "port" for the single level of most switches; "dnn" for queues in a second
    level below it (see ``PortBehaviour.group_weights``).
    """

    queue: int
    weight_percent: int | None = None
    group: str = "port"
    random_detect: RandomDetect | None = None
    limit_bytes: int | None = None
    dynamic_limit: str | None = None

    @property
    def limit(self) -> str:
        """The limit as text."""
        return self.dynamic_limit or ("none" if self.limit_bytes is None else f"{self.limit_bytes} B")


@dataclass(frozen=True, kw_only=True)
class PortBehaviour:
    """One port: the queue of each of the 64 DSCPs, then the queues from 0 up."""

    dscp_to_queue: tuple[int, ...]
    queues: tuple[QueueBehaviour, ...]
    group_weights: Mapping[str, int] = field(default_factory=dict)

    def queue(self, number: int) -> QueueBehaviour | None:
        return next((queue for queue in self.queues if queue.queue == number), None)


Behaviour = Mapping[str, PortBehaviour]

_LISTED = 4


@dataclass(frozen=True)
class Difference:
    """One difference: the place, the feature, and the value of each side."""

    where: str
    feature: str
    left: str
    right: str

    def __str__(self) -> str:
        return f"{self.where}: {self.feature}: {self.left} against {self.right}"


def condensed(found: Sequence[Difference]) -> list[str]:
    """One line per difference; consecutive DSCPs with the same difference share a line."""
    lines: list[str] = []
    run: list[Difference] = []

    def flush() -> None:
        if run:
            port, _, first = run[0].where.rpartition(" dscp ")
            last = run[-1].where.rpartition(" ")[2]
            span = first if first == last else f"{first}-{last}"
            lines.append(str(replace(run[0], where=f"{port} dscp {span}")))
            run.clear()

    for one in found:
        port, dscp, number = one.where.rpartition(" dscp ")
        if not dscp:
            flush()
            lines.append(str(one))
            continue
        before = None if not run else replace(run[-1], where=f"{port} dscp {int(number) - 1}")
        if before is not None and (before != run[-1] or (one.left, one.right) != (before.left, before.right)):
            flush()
        run.append(one)
    flush()
    return lines


def by_port(lines: Sequence[str], ports: Iterable[str]) -> list[str]:
    """Lines that differ only in the port they begin with ("port swp1 ...", "swp1 ...") share one; others appear once.

    ``ports``: the compared ports. A line about all of them, if they are many, says so instead of listing them.
    """
    ports = list(ports)
    names = "|".join(re.escape(port) for port in sorted(ports, key=len, reverse=True)) or "(?!)"
    pattern = re.compile(rf"(port |interface |)({names})(?=[ :])(.*)", re.DOTALL)
    shared: dict[tuple[str, str], list[str]] = {}
    for line in lines:
        found = pattern.fullmatch(line)
        key = (line, "") if found is None else (found[1], found[3])
        of = shared.setdefault(key, [])
        if found is not None and found[2] not in of:
            of.append(found[2])
    return [
        f"every port ({len(of)}){after}" if _LISTED < len(of) == len(ports) else f"{before}{', '.join(of)}{after}"
        for (before, after), of in shared.items()
    ]


def _off(left: int, right: int, tolerance_percent: float) -> bool:
    return abs(left - right) * 100 > tolerance_percent * max(abs(left), abs(right))


def _random_detect(
    where: str, left: RandomDetect | None, right: RandomDetect | None, tolerance_percent: float
) -> list[Difference]:
    if left is None or right is None:
        if left is right:
            return []
        return [Difference(where, "random-detect", *("none" if side is None else "set" for side in (left, right)))]
    found = []
    if _off(left.min_bytes, right.min_bytes, tolerance_percent):
        found.append(Difference(where, "min-threshold", f"{left.min_bytes} B", f"{right.min_bytes} B"))
    if _off(left.max_bytes, right.max_bytes, tolerance_percent):
        found.append(Difference(where, "max-threshold", f"{left.max_bytes} B", f"{right.max_bytes} B"))
    for feature in ("probability_percent", "mark_ect", "drop_not_ect"):
        one, other = getattr(left, feature), getattr(right, feature)
        if one != other:
            found.append(Difference(where, feature.replace("_", "-"), str(one), str(other)))
    return found


def _limit(where: str, left: QueueBehaviour, right: QueueBehaviour, tolerance_percent: float) -> list[Difference]:
    if left.limit == right.limit:
        return []
    both = left.limit_bytes is not None and right.limit_bytes is not None
    if both and not _off(left.limit_bytes or 0, right.limit_bytes or 0, tolerance_percent):
        return []
    return [Difference(where, "queue-limit", left.limit, right.limit)]


def _port(where: str, left: PortBehaviour, right: PortBehaviour, tolerance_percent: float) -> list[Difference]:
    if bool(left.queues) != bool(right.queues):
        return [Difference(where, "qos", *("set" if side.queues else "none" for side in (left, right)))]
    found = []
    for dscp, (one, other) in enumerate(zip(left.dscp_to_queue, right.dscp_to_queue, strict=True)):
        if one != other:
            found.append(Difference(f"{where} dscp {dscp}", "queue", str(one), str(other)))
    for number in sorted({queue.queue for queue in (*left.queues, *right.queues)}):
        one_queue, other_queue = left.queue(number), right.queue(number)
        at = f"{where} queue {number}"
        if one_queue is None or other_queue is None:
            found.append(
                Difference(at, "queue", *("absent" if q is None else "present" for q in (one_queue, other_queue)))
            )
            continue
        found += _random_detect(at, one_queue.random_detect, other_queue.random_detect, tolerance_percent)
        scheduling = [
            "strict" if q.weight_percent is None else f"weight {q.weight_percent}%" for q in (one_queue, other_queue)
        ]
        if scheduling[0] != scheduling[1]:
            found.append(Difference(at, "scheduling", *scheduling))
        if one_queue.group != other_queue.group:
            found.append(Difference(at, "scheduler-group", one_queue.group, other_queue.group))
        found += _limit(at, one_queue, other_queue, tolerance_percent)
    if dict(left.group_weights) != dict(right.group_weights):
        found.append(Difference(where, "group-weights", str(dict(left.group_weights)), str(dict(right.group_weights))))
    return found


def against_device(ours: Behaviour, device: Behaviour, *, limits: bool) -> list[Difference]:
    """Differences of a device from a policy's configuration, on the policy's ports; ``limits``: L_i is written too."""
    theirs = {port: device[port] for port in ours if port in device}
    found = differences(ours, theirs)
    return [each for each in found if limits or each.feature != "queue-limit"]


def differences(left: Behaviour, right: Behaviour, *, tolerance_percent: float = 0.0) -> list[Difference]:
    """All differences of two behaviours, port by port; an empty list means they forward alike."""
    found = []
    for port in dict.fromkeys((*left, *right)):
        if port not in left or port not in right:
            found.append(
                Difference(f"port {port}", "port", *("present" if port in side else "absent" for side in (left, right)))
            )
            continue
        found += _port(f"port {port}", left[port], right[port], tolerance_percent)
    return found
