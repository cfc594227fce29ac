"""The rules of SONiC's updater: ``updater.yaml`` applied to the operations of a change.

``config apply-patch`` and ``config rollback`` both compute the difference between two configurations and validate every
operation of it. ``difference`` does the same, so that a patch which a device would reject is never written.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from functools import lru_cache
from importlib.resources import files
from typing import Any

import yaml
from mlt.switch_configs.platforms import Platform

Database = dict[str, dict[str, dict[str, str]]]
Operation = dict[str, Any]


@lru_cache(maxsize=1)
def _data() -> Mapping[str, Any]:
    loaded: Mapping[str, Any] = yaml.safe_load((files(__package__) / "updater.yaml").read_text(encoding="utf-8"))
    return loaded


def releases() -> tuple[str, ...]:
    """The releases with known rules, oldest first."""
    return tuple(_data()["releases"])


def rules_of(release: str | None) -> tuple[str, Mapping[str, Any]]:
    """(the release whose rules apply, its tables): for an unknown release the oldest rules, which allow the least."""
    known = _data()["releases"]
    name = release if release is not None and release in known else releases()[0]
    return name, known[name]["tables"]


def pointer(*parts: str) -> str:
    """Encode a JSON pointer (RFC 6901)."""
    return "".join("/" + part.replace("~", "~0").replace("/", "~1") for part in parts)


def parts_of(path: str) -> list[str]:
    """Decode a JSON pointer (RFC 6901)."""
    return [part.replace("~1", "/").replace("~0", "~") for part in path.split("/")[1:]]


def difference(before: Any, after: Any, path: tuple[str, ...] = ()) -> Iterator[Operation]:
    """RFC 6902 operations that turn ``before`` into ``after``, each as deep as possible."""
    for key in before:
        if key not in after:
            yield {"op": "remove", "path": pointer(*path, key)}
    for key, value in after.items():
        if key not in before:
            yield {"op": "add", "path": pointer(*path, key), "value": value}
        elif isinstance(value, dict) and isinstance(before[key], dict):
            yield from difference(before[key], value, (*path, key))
        elif value != before[key]:
            yield {"op": "replace", "path": pointer(*path, key), "value": value}


def patched(database: Any, operations: list[Operation]) -> Any:
    """Apply RFC 6902 add, replace and remove; raises KeyError for a path that does not exist."""
    result = copy.deepcopy(database)
    for step in operations:
        *above, name = parts_of(step["path"])
        parent = result
        for part in above:
            parent = parent[part]
        if step["op"] == "remove":
            del parent[name]
        elif step["op"] == "replace" and name not in parent:
            raise KeyError(step["path"])
        else:
            parent[name] = copy.deepcopy(step["value"])
    return result


def refusals(before: Database, after: Database, *, release: str | None, platform: Platform) -> list[str]:
    """Why the updater of ``release`` would reject the change from ``before`` to ``after``; empty if it would not."""
    name, tables = rules_of(release)
    asic = "unknown" if platform.facts.updater_asic is None else platform.facts.updater_asic.value
    found = [f"leaves table {table} empty" for table, entries in after.items() if not entries]
    for step in difference(before, after):
        table = parts_of(step["path"])[0]
        if table in tables and not _allowed(tables[table], step, asic):
            found.append(f"{step['op']} {step['path']} is illegal on {name} ({asic})")
    return found


def _allowed(rule: Mapping[str, Any], step: Operation, asic: str) -> bool:
    parts = parts_of(step["path"])[1:]
    if len(parts) == 1 and step["op"] in rule.get("objects", ()):
        return True
    if rule["numbered"] == "drop":
        parts = [part for part in parts if not any(letter.isdigit() for letter in part)]
    here = "/".join(parts).lower()
    fields = [here]
    if isinstance(step.get("value"), dict):
        fields = [f"{here}/{key}" if here else key for key in step["value"]]
    return all(_field_allowed(rule, field, step["op"], asic) for field in fields)


def _field_allowed(rule: Mapping[str, Any], field: str, operation: str, asic: str) -> bool:
    name = field if rule["match"] == "whole" else field.rsplit("/", 1)[-1]
    scenario = next((each for each in rule["scenarios"] if name in each["fields"]), None)
    return scenario is not None and asic in scenario["asics"] and operation in scenario["operations"]
