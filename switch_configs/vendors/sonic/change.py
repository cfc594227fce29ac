"""Converts one switch's CONFIG_DB to one with the policy, and back: by patch if the updater allows it, else by load.

``config load`` merges fields into existing entries, so obsolete entries and fields are deleted by name first. Both
directions are tried on a model of the device before they are written: the undo must restore exactly the running
configuration.
"""

from __future__ import annotations

import copy
import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mlt.switch_configs.errors import listed
from mlt.switch_configs.vendors.sonic.model import split_queue_key
from mlt.switch_configs.vendors.sonic.updater import Database, Operation, difference, patched

# These entries contain fields of several owners: mlt sets its own and keeps the others'.
SHARED_ENTRIES = ("PORT_QOS_MAP",)
RANGED_TABLES = ("QUEUE", "BUFFER_QUEUE")
# orchagent does not remove referenced entries: bindings are deleted first, a pool after its profiles.
BINDINGS = ("PORT_QOS_MAP", "QUEUE", "BUFFER_QUEUE")
DEFINITIONS = (
    ("DSCP_TO_TC_MAP", "TC_TO_QUEUE_MAP", "TC_TO_PRIORITY_GROUP_MAP", "SCHEDULER", "WRED_PROFILE", "BUFFER_PROFILE"),
    ("BUFFER_POOL",),
)
# sonic-utilities, config/main.py: interface pfc priority, one class at a time.
CLEAR_PFC = "sudo config interface pfc priority PORT {number} off"


@dataclass(frozen=True, kw_only=True)
class Load:
    """A conversion between two databases without the updater: keys and fields to delete, then entries to load."""

    keys: tuple[tuple[str, str], ...]
    fields: tuple[tuple[str, str, str], ...]
    entries: Database

    def run(self, database: Database) -> Database:
        """The device's database afterwards: ``sonic-db-cli`` deletes, ``config load`` merges fields."""
        result = copy.deepcopy(database)
        for table, key in self.keys:
            del result[table][key]
        for table, key, name in self.fields:
            del result[table][key][name]
        for table, entries in self.entries.items():
            for key, entry in entries.items():
                result.setdefault(table, {}).setdefault(key, {}).update(entry)
        return {table: entries for table, entries in result.items() if entries}

    def besides(self, tables: Database) -> Database:
        """The entries to load that are not in ``tables``: the device's own, expanded to one per queue."""
        rest = {
            table: {key: entry for key, entry in entries.items() if key not in tables.get(table, {})}
            for table, entries in self.entries.items()
        }
        return {table: entries for table, entries in rest.items() if entries}

    def script(self, *files: str) -> str:
        """The same as shell commands; ``files`` contain the entries."""
        lines = ["#!/bin/sh", "set -eu"]
        lines += _deletions(self.keys, BINDINGS)
        lines += [
            f"sonic-db-cli CONFIG_DB HDEL {shlex.quote(f'{table}|{key}')} {shlex.quote(name)}"
            for table, key, name in self.fields
        ]
        lines += [f"config load -y {file}" for file in files]
        for tables in DEFINITIONS:  # last: until now a port or a queue may have used them
            lines += _deletions(self.keys, tables)
        return "\n".join(lines) + "\n"


@dataclass(frozen=True, kw_only=True)
class Change:
    """One device before and after. ``notes``: the device's settings that affect the policy and stay."""

    before: Database
    after: Database
    notes: tuple[str, ...] = field(default=())

    def patch(self) -> tuple[list[Operation], list[Operation]]:
        """(patch, its inverse), both tried: the second must restore ``before`` exactly."""
        there, back = list(difference(self.before, self.after)), list(difference(self.after, self.before))
        if patched(self.before, there) != self.after or patched(self.after, back) != self.before:
            raise AssertionError("the patch does not lead there and back")
        return there, back

    def loads(self) -> tuple[Load, Load]:
        """(apply, undo) by deletion and ``config load``, both tried."""
        there, back = _load(self.before, self.after), _load(self.after, self.before)
        if there.run(self.before) != self.after or back.run(self.after) != self.before:
            raise AssertionError("the load does not lead there and back")
        return there, back


def _deletions(keys: tuple[tuple[str, str], ...], tables: tuple[str, ...]) -> list[str]:
    wanted = [f"{table}|{key}" for table, key in keys if table in tables]
    return [f"sonic-db-cli CONFIG_DB DEL {shlex.quote(entry)}" for entry in wanted]


def _load(before: Database, after: Database) -> Load:
    keys = [(table, key) for table, entries in before.items() for key in entries if key not in after.get(table, {})]
    fields = [
        (table, key, name)
        for table, entries in before.items()
        for key, entry in entries.items()
        for name in entry
        if key in after.get(table, {}) and name not in after[table][key]
    ]
    entries: Database = {}
    for table, wanted in after.items():
        changed = {key: entry for key, entry in wanted.items() if before.get(table, {}).get(key) != entry}
        if changed:
            entries[table] = changed
    return Load(keys=tuple(keys), fields=tuple(fields), entries=entries)


def change(running: Mapping[str, Any], tables: Database, ports: tuple[str, ...]) -> Change:
    """The running configuration with ``tables`` in it; overlapping ranges of queues on ``ports`` are split."""
    before: Database = {table: entries for table, entries in copy.deepcopy(dict(running)).items() if entries}
    after = copy.deepcopy(before)
    notes: list[str] = []
    for table in RANGED_TABLES:
        if table in tables and table in after:
            after[table] = _split(after[table], tables[table], ports, table, notes)
    for table, entries in tables.items():
        for key, entry in entries.items():
            known = after.setdefault(table, {}).get(key, {})
            after[table][key] = {**known, **entry} if table in SHARED_ENTRIES else dict(entry)
    paused: dict[str, list[str]] = {}
    for port in ports:
        if classes := after.get("PORT_QOS_MAP", {}).get(port, {}).get("pfc_enable", ""):
            paused.setdefault(classes, []).append(port)
    for classes, named in paused.items():
        off = "; ".join(CLEAR_PFC.format(number=number) for number in classes.split(","))
        notes.append(
            f"{listed(named)} keep pfc_enable {classes}: those classes are paused where the policy means them to be "
            f"dropped; clear it at each PORT: {off}"
        )
    if "global" in after.get("PORT_QOS_MAP", {}):
        notes.append("PORT_QOS_MAP|global stays; it serves the ports that have no entry of their own")
    return Change(before=before, after=after, notes=tuple(notes))


def _split(
    entries: dict[str, dict[str, str]],
    ours: Mapping[str, Any],
    ports: tuple[str, ...],
    table: str,
    notes: list[str],
) -> dict[str, dict[str, str]]:
    """Entries with every range (or list of ports) that overlaps ``ours`` expanded to one per queue."""
    result: dict[str, dict[str, str]] = {}
    keys: list[str] = []
    kept: list[str] = []
    for key, entry in entries.items():
        split = split_queue_key(key)
        if split is None or key in ours:
            result[key] = entry
            continue
        named, queues = split
        single = [f"{port}|{queue}" for port in named for queue in queues]
        if not any(each in ours for each in single):
            result[key] = entry
            continue
        rest = [each for each in single if each not in ours]
        keys.append(f"{table}|{key}")
        kept += rest
        result.update({each: dict(entry) for each in rest})
    if keys:
        stay = f"; {listed(kept)} keep what those said" if kept else ""
        notes.append(f"{table}: {len(keys)} entries of several queues or ports are split ({listed(keys)}){stay}")
    return result


def text(value: Any) -> str:
    """JSON in the format of the device's own files."""
    return json.dumps(value, indent=1) + "\n"
