"""The values that a field of a file expects, in this project's words instead of the validating library's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_EXPECTED = {
    "missing": "is required",
    "int": "expected an integer",
    "float": "expected a number",
    "finite_number": "expected a finite number",
    "bool": "expected true or false",
    "string_too_short": "expected {min_length} characters or more",
    "string_too_long": "expected {max_length} characters or fewer",
    "string_pattern_mismatch": "expected text of the form {pattern}",
    "string": "expected text",
    "greater_than_equal": "expected {ge} or more",
    "greater_than": "expected more than {gt}",
    "less_than_equal": "expected {le} or less",
    "less_than": "expected less than {lt}",
    "literal_error": "expected {expected}",
    "enum": "expected {expected}",
    "too_short": "expected {min_length} or more entries",
    "too_long": "expected {max_length} or fewer entries",
    "model": "expected a mapping of keys",
    "dataclass": "expected a mapping of keys",
    "dict": "expected a mapping of keys",
    "mapping": "expected a mapping of keys",
    "list": "expected a list",
    "tuple": "expected a list",
    "set": "expected a list",
    "extra_forbidden": "unknown key",
    "unexpected_keyword_argument": "unknown key",
}


def given(value: object) -> str:
    """The end of an error about a field: what the file has there, as it is written in YAML and JSON; nothing for a
    mapping or a list, which would fill the terminal."""
    if value is None or isinstance(value, bool):
        return f", got {'null' if value is None else str(value).lower()}"
    return f", got {value!r}" if isinstance(value, str | int | float) else ""


def expectation(problem: Mapping[str, Any]) -> str:
    """The text for one entry of ``ValidationError.errors()``: what was expected, without what was given."""
    kind, context = str(problem["type"]), problem.get("ctx") or {}
    if kind in ("value_error", "assertion_error"):
        return str(context.get("error", problem["msg"]))
    # The longest name that the kind begins with: int_type and int_parsing are both "int".
    known = max((name for name in _EXPECTED if kind == name or kind.startswith(f"{name}_")), key=len, default=None)
    shown = {name: f"{value:g}" if isinstance(value, float) else value for name, value in context.items()}
    return _EXPECTED[known].format(**shown) if known is not None else str(problem["msg"])
