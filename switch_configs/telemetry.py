"""Counters from telemetry: JSON of our own, OpenConfig's queue state (gNMI Get, Subscribe), or pasted tables.

Units: packets and bytes since the counters were cleared. Missing counters stay None.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from mlt.switch_configs.counters import QueueCounters, merge
from mlt.switch_configs.errors import SwitchConfigError
from mlt.switch_configs.target import Target

from mlt._shared.structured_text import parse_json

_NUMBERS = tuple(field.name for field in fields(QueueCounters) if field.name not in ("port", "queue"))
# Leaf of openconfig-qos queue state, or of its common augmentations -> ours.
_LEAVES = {
    "transmit-pkts": "sent",
    "dropped-pkts": "dropped_at_limit",
    "ecn-marked-pkts": "marked",
    "wred-dropped-pkts": "dropped_early",
    "avg-queue-len": "queued_bytes",
}
_QUEUE_PATH = re.compile(
    r"interface\[interface-id=(?P<port>[^\]]+)\]/output/queues/queue\[name=(?P<queue>[^\]]+)\](?:/(?P<rest>.*))?"
)


def read(text: str, target: Target) -> list[QueueCounters]:
    """Counters in ``text`` of any supported form; raises SwitchConfigError if it contains none."""
    found: list[QueueCounters] = []
    stripped = text.lstrip()
    if stripped[:1] in ("{", "["):
        try:
            found = read_json(parse_json(stripped))
        except ValueError:
            found = _read_lines(stripped)
    return found or target.parse_counters(text) or _nothing(target)


def _read_lines(text: str) -> list[QueueCounters]:
    """One JSON document per line, as collectors write them; a later line replaces an earlier one."""
    rows: list[QueueCounters] = []
    for line in text.splitlines():
        if line.strip():
            try:
                rows += read_json(parse_json(line))
            except ValueError:
                return []
    return merge(rows)


def _nothing(target: Target) -> list[QueueCounters]:
    raise SwitchConfigError(
        f"no queue counters in it: expected JSON ({{port, queue, {', '.join(_NUMBERS)}}}), OpenConfig's queue state, "
        f"or the whole output of the commands for {target.title}"
    )


def read_json(body: Any) -> list[QueueCounters]:
    """Our own JSON (a list of counters), or OpenConfig's."""
    if isinstance(body, list) and body and all(isinstance(row, dict) and "queue" in row for row in body):
        return merge([_own(row) for row in body])
    return read_openconfig(body)


def _own(row: dict[str, Any]) -> QueueCounters:
    numbers = {name: row[name] for name in _NUMBERS if row.get(name) is not None}
    for name, value in numbers.items():
        if type(value) is not int or value < 0:
            raise SwitchConfigError(
                f"counter {name} of {row.get('port')} queue {row['queue']}: {value!r} is not a count"
            )
    queue = _number(str(row["queue"]))
    if queue is None:
        raise SwitchConfigError(f"queue {row['queue']!r} of {row.get('port')}: a number, or a name that ends with one")
    return QueueCounters(port=str(row.get("port", "?")), queue=queue, **numbers)


def _number(name: str) -> int | None:
    match = re.search(r"(\d+)$", name)
    return int(match[1]) if match else None


def read_openconfig(body: Any) -> list[QueueCounters]:
    """Queue state of a QoS tree, of Get's and Subscribe's notifications (pygnmi's or gnmic's JSON), in any nesting."""
    return merge(_found(body, ""))


def _found(body: Any, path: str) -> Iterator[QueueCounters]:
    if isinstance(body, list):
        for entry in body:
            yield from _found(entry, path)
        return
    if not isinstance(body, dict):
        return
    # A notification: a prefix, updates with a path each, a value.
    here = _join(path, body.get("prefix"), body.get("path", body.get("Path")))
    if match := _QUEUE_PATH.search(here):
        yield from _at_queue(match, body.get("val", body.get("value", body)))
    if "interface-id" in body:
        here = f"{here}/interface[interface-id={body['interface-id']}]"
    for key, value in body.items():
        name = key.rpartition(":")[2]
        if name == "queue" and isinstance(value, list):
            for queue in value:
                if isinstance(queue, dict) and "name" in queue:
                    yield from _found_queue(queue, f"{here}/output/queues/queue[name={queue['name']}]")
        elif isinstance(value, (dict, list)) and name not in ("val", "input"):
            yield from _found(value, here)


def _found_queue(queue: dict[str, Any], path: str) -> Iterator[QueueCounters]:
    if match := _QUEUE_PATH.search(path):
        yield from _at_queue(match, queue)


def _join(*parts: Any) -> str:
    """Join parts of a path, without module prefixes; gnmic adds them, pygnmi does not."""
    text = "/".join(part.strip("/") for part in parts if isinstance(part, str) and part)
    return re.sub(r"(^|/)[a-z-]+:", r"\1", text)


def _at_queue(match: re.Match[str], value: Any) -> Iterator[QueueCounters]:
    queue = _number(match["queue"])
    if queue is None:
        return
    leaf = (match["rest"] or "").rpartition("/")[2]
    state = {leaf: value} if leaf in _LEAVES else value.get("state", value) if isinstance(value, dict) else {}
    numbers: dict[str, int] = {}
    for key, entry in state.items():
        name = _LEAVES.get(key.rpartition(":")[2])
        if isinstance(entry, dict):  # gnmic wraps a value in its path
            continue
        if name is not None and str(entry).isdigit():
            numbers[name] = int(entry)
    if numbers:
        yield QueueCounters(port=match["port"], queue=queue, **numbers)
