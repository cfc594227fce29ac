"""Whether a switch follows the policy: counters of one measurement, class by class.

Paper: sections 4.2.2 and 5.2. Counters cover the time of a job: cleared before it, or the difference of two readings.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from mlt.switch_configs.counters import COUNTS, QueueCounters
from mlt.switch_configs.errors import listed
from mlt.switch_configs.plan import Plan, PlannedQueue

# Fraction of a data class's packets; above it, the switch drops large gradients that the policy protects.
LIMIT_DROPS = 0.01
_COUNTS = tuple(field.name for field in fields(QueueCounters) if field.name not in ("port", "queue", "queued_bytes"))


@dataclass(frozen=True)
class Statement:
    """One statement about one class: ``wrong`` contradicts the policy, ``note`` may."""

    level: Literal["wrong", "note"]
    where: str
    what: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"


def since(later: Iterable[QueueCounters], earlier: Iterable[QueueCounters]) -> list[QueueCounters]:
    """Counts between two readings; None if a reading lacks the counter or the counter decreased."""
    known = {(row.port, row.queue): row for row in earlier}
    found = []
    for row in later:
        before = known.get((row.port, row.queue))
        if before is not None:
            counts: dict[str, Any] = {n: _difference(getattr(row, n), getattr(before, n)) for n in _COUNTS}
            row = replace(row, **counts)
        found.append(row)
    return found


def _difference(later: int | None, earlier: int | None) -> int | None:
    return None if later is None or earlier is None or later < earlier else later - earlier


def check(plan: Plan, rows: Sequence[QueueCounters]) -> list[Statement]:
    """Contradictions to the policy, queue by queue; an empty list if none."""
    found: list[Statement] = []
    queues = {queue.number: queue for queue in plan.queues}
    for row in rows:
        queue = queues.get(row.queue)
        if queue is not None:
            where = f"{row.port} queue {row.queue} ({queue.name})"
            counted = _in_packets(row, plan.policy.switch.packet_bytes)
            found += [Statement(level, where, what) for level, what in _of_queue(queue, counted)]
    return found + _of_all(rows, queues)


def unseen(plan: Plan, rows: Sequence[QueueCounters]) -> list[str]:
    """The plan's queues and ports without a row; also the data classes, if no row counts a sent packet.

    Ports only if the rows use the plan's names.
    """
    seen: dict[str, set[int]] = {}
    for row in rows:
        seen.setdefault(row.port, set()).add(row.queue)
    ours = set(plan.ports) & set(seen) or set(seen)  # the policy does not cover a device's other ports
    lacking: dict[tuple[str, ...], list[str]] = {}
    for port, numbers in seen.items():
        missing = tuple(f"{queue.number} ({queue.name})" for queue in plan.queues if queue.number not in numbers)
        if missing and port in ours:
            lacking.setdefault(missing, []).append(port)
    found = [f"queues {', '.join(missing)} of {listed(ports)}" for missing, ports in lacking.items()]
    absent = [port for port in plan.ports if port not in seen]
    if absent and len(absent) < len(plan.ports):
        found.append(f"ports {listed(absent)}")
    data = {queue.number for queue in plan.queues if queue.role == "data"}
    if rows and all(row.sent == 0 for row in rows) and any(row.queue in data for row in rows):
        found.append("a packet in any data class; read again while a job runs (--during)")
    return found


def named(plan: Plan, rows: Iterable[QueueCounters]) -> list[QueueCounters]:
    """Rows with the plan's port names, if the device writes them in another case (NX-OS: Ethernet1/1)."""
    known = {port.lower(): port for port in plan.ports}
    return [replace(row, port=known.get(row.port.lower(), row.port)) for row in rows]


def uncounted(plan: Plan, rows: Sequence[QueueCounters], of: Collection[str] = COUNTS) -> list[str]:
    """Counters among ``of`` that no row has, with the classes whose check needs them."""
    found = []
    for name, words in (
        ("sent", "sent"),
        ("marked", "marked"),
        ("dropped_early", "dropped early"),
        ("dropped_at_limit", "dropped at the limit"),
    ):
        classes = [
            queue.name
            for queue in plan.queues
            if (queue.random_detect is not None or (queue.role == "control" and name == "dropped_at_limit"))
            and (own := [row for row in rows if row.queue == queue.number])
            and all(getattr(row, name) is None for row in own)
            and not (name == "dropped_at_limit" and any(row.dropped_at_limit_bytes is not None for row in own))
            and name in of
        ]
        if classes:
            found.append(f"{words} ({', '.join(classes)})")
    return found


def _in_packets(row: QueueCounters, packet_bytes: int) -> QueueCounters:
    """Bytes dropped at the limit as full-size packets, if the device counts only bytes: a lower bound of the drops."""
    if row.dropped_at_limit is not None or row.dropped_at_limit_bytes is None:
        return row
    return replace(row, dropped_at_limit=math.ceil(row.dropped_at_limit_bytes / packet_bytes))


def _of_queue(queue: PlannedQueue, row: QueueCounters) -> Iterable[tuple[Literal["wrong", "note"], str]]:
    early, marked, limit = row.dropped_early or 0, row.marked or 0, row.dropped_at_limit or 0
    if queue.random_detect is None:
        if early or marked:
            yield "wrong", f"{marked} marked and {early} dropped early; it must have no RED"
        if limit and queue.role == "control":
            yield "wrong", f"{limit} packets dropped; control packets are what transfers wait for"
        return
    total = (row.sent or 0) + early + limit
    if row.sent is not None and limit > LIMIT_DROPS * total:
        yield (
            "wrong",
            f"{limit} of {total} packets dropped at its limit ({limit / total:.1%}), large gradients among them: more "
            "arrives at once than L holds (mlt switch policy --workers), or the load is too high",
        )
    if marked and row.dropped_early == 0:
        yield "note", f"{marked} marked and none dropped early: no Not-ECT packet came, or the switch only marks"
    if early and row.marked == 0:
        yield "note", f"{early} dropped early and none marked: no ECT packet came, or the switch drops those too"


def _of_all(rows: Sequence[QueueCounters], queues: dict[int, PlannedQueue]) -> list[Statement]:
    """Over all ports: a port towards a host that only receives control or foreign packets is not a fault."""
    sent: dict[str, int] = {}
    for row in rows:
        if row.queue in queues and row.sent is not None:
            role = queues[row.queue].role
            sent[role] = sent.get(role, 0) + row.sent
    if sent.get("data") == 0 and sent.get("default", 0) > 0:
        what = f"{sent['default']} packets in the default class and none in data's: the hosts stamp other DSCPs "
        what += "(MLT_QOS_POLICY on every rank), the port does not trust them, or no job ran meanwhile"
        return [Statement("wrong", "all ports", what)]
    return []
