"""Per-queue counters from pasted command output: packets marked, dropped early, dropped at the limit."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

# Counters that the check needs, as fields of ``QueueCounters``.
COUNTS = frozenset({"sent", "marked", "dropped_early", "dropped_at_limit"})


@dataclass(frozen=True, kw_only=True)
class QueueCounters:
    """Packets since the counters were cleared; ``queued_bytes`` is the current queue. None: missing from the output,
    unlike zero. ``dropped_at_limit_bytes``: for devices that count those in bytes only."""

    port: str
    queue: int
    sent: int | None = None
    marked: int | None = None
    dropped_early: int | None = None
    dropped_at_limit: int | None = None
    dropped_at_limit_bytes: int | None = None
    queued_bytes: int | None = None


def merge(rows: Iterable[QueueCounters]) -> list[QueueCounters]:
    """Join rows about the same port and queue (several commands pasted together); later values win over None."""
    found: dict[tuple[str, int], QueueCounters] = {}
    for row in rows:
        key = (row.port, row.queue)
        known = found.get(key)
        if known is None:
            found[key] = row
            continue
        updates = {
            name: getattr(row, name)
            for name in (
                "sent",
                "marked",
                "dropped_early",
                "dropped_at_limit",
                "dropped_at_limit_bytes",
                "queued_bytes",
            )
            if getattr(row, name) is not None
        }
        found[key] = replace(known, **updates)
    return sorted(found.values(), key=lambda row: (row.port, -row.queue))


def integer(text: str) -> int | None:
    """``"1,234"`` -> 1234; ``"N/A"`` or ``"-"`` -> None."""
    cleaned = text.replace(",", "").strip()
    return int(cleaned) if re.fullmatch(r"\d+", cleaned) else None
