"""Validates CONFIG_DB's QoS tables against ``model.yaml``: unknown fields, unknown ports, dangling references."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from importlib.resources import files
from typing import Any

import yaml

Tables = Mapping[str, Mapping[str, Mapping[str, str]]]
_QUEUE_KEY = re.compile(r"(?P<ports>[^|]+)\|(?P<first>\d+)(?:-(?P<last>\d+))?")


@lru_cache(maxsize=1)
def model() -> Mapping[str, Any]:
    """``model.yaml``."""
    loaded: Mapping[str, Any] = yaml.safe_load((files(__package__) / "model.yaml").read_text(encoding="utf-8"))
    return loaded


def split_queue_key(key: str) -> tuple[tuple[str, ...], range] | None:
    """``"Ethernet0,Ethernet4|0-2"`` -> (both ports, 0..2); None for any other key."""
    match = _QUEUE_KEY.fullmatch(key)
    if match is None:
        return None
    first = int(match["first"])
    return tuple(match["ports"].split(",")), range(first, int(match["last"] or first) + 1)


def problems(tables: Tables) -> Iterator[tuple[str, str]]:
    """(where, what) of all violations of the models in the QoS tables. Ports are validated if PORT is present."""
    for table, rules in model().items():
        for key, entry in tables.get(table, {}).items():
            where = f"{table}|{key}"
            yield from ((where, what) for what in _key(tables, rules["key"], key))
            if "numbered" in rules:
                yield from ((where, what) for what in _numbered(rules["numbered"], entry))
                continue
            for name, value in entry.items():
                rule = rules["fields"].get(name)
                if rule is None:
                    yield where, f"unknown field {name!r}"
                elif (what := _value(tables, rule, value)) is not None:
                    yield where, f"{name}: {what}"


def _key(tables: Tables, kind: str, key: str) -> Iterator[str]:
    ports: tuple[str, ...] = ()
    if kind == "port" and key != "global":
        ports = (key,)
    elif kind == "queue":
        split = split_queue_key(key)
        if split is None or not len(split[1]):
            yield "not a key of the form PORT|QUEUE or PORT|FIRST-LAST"
            return
        ports = split[0]
    elif kind == "name" and not re.fullmatch(r"[a-zA-Z0-9][-a-zA-Z0-9_]{0,31}", key):
        yield "not a name of 32 letters, digits, - and _ at most"
    if "PORT" in tables:
        yield from (f"port {port!r} does not exist" for port in ports if port not in tables["PORT"] and port != "CPU")


def _numbered(rule: Mapping[str, tuple[int, int]], entry: Mapping[str, str]) -> Iterator[str]:
    for name, value in entry.items():
        for what, text in (("keys", name), ("values", value)):
            low, high = rule[what]
            if not (str(text).isdigit() and low <= int(text) <= high):
                yield f"{name} -> {value}: {text!r} is not a number from {low} to {high}"


def _value(tables: Tables, rule: Any, value: object) -> str | None:
    if isinstance(rule, str):
        table = rule.removeprefix("-> ")
        return None if value in tables.get(table, {}) else f"refers to {table} {value!r}, which is not defined"
    if isinstance(rule, list):
        return None if value in rule else f"{value!r} is not one of {', '.join(rule)}"
    if "pattern" in rule:
        return None if re.fullmatch(rule["pattern"], str(value)) else f"{value!r} is not of the form {rule['pattern']}"
    low, high = rule["range"]
    number = str(value)
    if re.fullmatch(r"-?\d+", number) and low <= int(number) <= high:
        return None
    return f"{value!r} is not a number from {low} to {high}"
