"""Counters of a testbed, read from the programs' tables and from tc."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mlt.testbed import impairments, switch_port, tc
from mlt.testbed.impairments import LossCounters
from mlt.testbed.layout import DIRECTIONS, End, Layout
from mlt.testbed.libbpf import Table
from mlt.testbed.switch_port import QueueCounters
from mlt.testbed.topology import QueueKind, Topology


def key_of(end: End) -> bytes:
    """Key of an interface in the tables."""
    return struct.pack("=I", end.index)


def of_queues(
    layout: Layout, kind: QueueKind, names: Mapping[int, str], tables: Mapping[str, Table], path: Callable[[str], Path]
) -> list[QueueCounters]:
    """Every queue of every switch port, highest first. ``names``: queue number -> class."""
    found = []
    for switch in layout.switches:
        below = _real_queues(tc.show(path(switch)))
        for end in layout.ports(switch):
            if kind == "red":
                found += _red(switch, end, names, tc.show_text(path(switch), end.interface))
                continue
            for queue, name in sorted(names.items(), reverse=True):
                real = below.get((end.interface, queue), {})
                counted: dict[str, int] = {"sent": real.get("packets", 0)}
                if "counters" in tables:
                    values = tables["counters"].lookup(key_of(end) + struct.pack("=I", queue))
                    counted = switch_port.decode_counters(values or [])
                found.append(
                    QueueCounters(
                        switch=switch, port=end.interface, queue=queue, name=name, **counted,
                        dropped_full=real.get("drops", 0), backlog=real.get("backlog", 0),
                    )
                )  # fmt: skip
    return found


def _real_queues(rows: list[dict[str, Any]]) -> dict[tuple[str, int], dict[str, int]]:
    """(interface, queue) -> counters of the fifo that holds its packets: handles 20: to 27:."""
    found = {}
    for row in rows:
        handle = str(row.get("handle", "")).rstrip(":")
        if row.get("kind") == "bfifo" and handle.isdigit() and 20 <= int(handle) <= 27:
            found[str(row.get("dev")), int(handle) - 20] = row
    return found


def _red(switch: str, end: End, names: Mapping[int, str], text: str) -> list[QueueCounters]:
    from mlt.switch_configs.registry import target

    return [
        QueueCounters(
            switch=switch, port=end.interface, queue=row.queue, name=names.get(row.queue, ""), sent=row.sent or 0,
            marked=row.marked or 0, dropped_early=row.dropped_early or 0,
            dropped_at_limit=row.dropped_at_limit or 0,
        )
        for row in sorted(target("linux").parse_counters(text), key=lambda row: -row.queue)
    ]  # fmt: skip


def of_links(
    layout: Layout, topology: Topology, tables: Mapping[str, Table], broken: frozenset[str]
) -> list[LossCounters]:
    """Both directions of every link; zeros where the seeded program is not used."""
    found = []
    for link in layout.links:
        settings = topology.settings(link.name)
        for direction in DIRECTIONS:
            seen = lost = 0
            if "link_counters" in tables:
                values = tables["link_counters"].lookup(key_of(link.receiver(direction)))
                seen, lost = impairments.decode_counters(values[0]) if values else (0, 0)
            loss = float(getattr(settings, f"loss_{direction}") or 0)
            found.append(
                LossCounters(
                    link=link.name, direction=direction, loss=loss, seen=seen, lost=lost, up=link.name not in broken
                )
            )
    return found
