"""JSON objects, one a line: written, read from unknown clients, and shown."""

from __future__ import annotations

import json
from typing import Any

# Of what another host sent and an error, a log or an answer repeats.
MAX_QUOTED = 64


def line_of(message: dict[str, Any]) -> bytes:
    """One message as it is sent."""
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def object_of(line: str | bytes) -> dict[str, Any]:
    """The JSON object of a line. Raises ValueError for anything else, nesting without end included."""
    try:
        message = json.loads(line)
    except RecursionError:
        message = None
    if not isinstance(message, dict):
        raise ValueError("not a JSON object")
    return message


def shown(text: str) -> str:
    """``text`` for a terminal or a log, though an unknown client may have written parts of it.

    It then has no control characters, and no line of its own that begins like one of ours.
    """
    lines = ["".join(one if one.isprintable() else "?" for one in line) for line in text.split("\n")]
    return "\n".join(lines[:1] + [line if line.startswith("  ") else f"  {line}" for line in lines[1:]])


def quoted(value: object, maximum: int = MAX_QUOTED) -> str:
    """A value that another host sent, for an error or an answer: one line, printable, up to ``maximum`` characters."""
    text = value if isinstance(value, str) else repr(value)
    line = "".join(one if one.isprintable() else "?" for one in text[: maximum + 1])
    return line if len(text) <= maximum else f"{line[:maximum]}..."
