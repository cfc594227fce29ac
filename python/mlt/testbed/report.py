"""Counters as tables and as JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from rich.console import Group
from rich.table import Table

from mlt._shared.counts import count_of
from mlt._shared.units import format_loss, format_rate, format_size, format_time
from mlt.testbed.bed import Testbed


def as_json(bed: Testbed) -> dict[str, Any]:
    """All data of ``status``."""
    return {
        "name": bed.name,
        "topology": bed.topology.as_dict(),
        "hosts": dict(bed.layout.hosts),
        "links": [asdict(row) for row in bed.link_counters()],
        "queues": [asdict(row) for row in bed.counters()],
        "delays": [asdict(row) for row in bed.delay_counters()],
    }


def tables(bed: Testbed, *, everything: bool = False) -> Group:
    """Links, then queues that had packets (all with ``everything``)."""
    links = Table("link", "state", "rate", "", "loss", "packets", "lost", "measured", title=f"links of {bed.name}")
    for row in bed.link_counters():
        measured = format_loss(row.lost / row.seen) if row.seen else "-"
        rate = bed.topology.settings(row.link).rate
        links.add_row(
            row.link, "up" if row.up else "broken", format_rate(rate or 0), row.direction, format_loss(row.loss),
            f"{row.seen:,}", f"{row.lost:,}", measured,
        )  # fmt: skip
    # Narrow enough for 80 columns.
    which = ["switch"] if len(bed.layout.switches) > 1 else []
    columns = (*which, "port to", "class", "sent", "marked", "early", "limit", "full", "waiting")
    queues = Table(*columns, title="switch queues, in packets (early, limit, full: dropped)")
    for one in bed.counters():
        drops = (one.dropped_early, one.dropped_at_limit, one.dropped_full)
        if everything or one.sent or any(drops):
            queues.add_row(
                *([one.switch] if which else []), one.port, f"{one.queue} {one.name}", f"{one.sent:,}",
                f"{one.marked:,}", *(f"{count:,}" for count in drops), format_size(one.backlog),
            )  # fmt: skip
    if not bed.layout.lines:
        return Group(links, queues)
    columns = ("link", "", "delay", "jitter", "passed", "held", "full", "unread", "unsent")
    delays = Table(*columns, title="delay lines, in frames (full, unread, unsent: dropped)")
    for line in bed.delay_counters():
        counts = (line.passed, line.held, line.dropped_full, line.dropped_unread, line.dropped_unsent)
        delays.add_row(
            line.link, line.direction, format_time(line.delay), format_time(line.jitter),
            *(f"{count:,}" for count in counts),
        )  # fmt: skip
    return Group(links, delays, queues)


def summary(bed: Testbed) -> str:
    """One line after a run: counters of the network's effect on the packets."""
    links = bed.link_counters()
    seen, lost = sum(row.seen for row in links if row.direction == "up"), sum(row.lost for row in links)
    queues = bed.counters()
    parts = [
        f"{count_of(seen, 'packet')} sent, {lost:,} lost on links" + (f" ({format_loss(lost / seen)})" if seen else "")
    ]
    if not bed.counts_links:
        parts = [f"{count_of(sum(one.sent for one in queues), 'packet')} through switch ports"]
    parts.append(f"{sum(one.marked for one in queues):,} marked")
    parts.append(f"{sum(one.dropped_early for one in queues):,} dropped early")
    parts.append(f"{sum(one.dropped_at_limit + one.dropped_full for one in queues):,} dropped by full queues")
    if delays := bed.delay_counters():
        dropped = sum(line.dropped_full + line.dropped_unread + line.dropped_unsent for line in delays)
        parts.append(f"{dropped:,} dropped by delay lines")
    return ", ".join(parts)
