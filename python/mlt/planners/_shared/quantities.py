"""Numbers with units as people write them in files: ``25 Gbit/s``, ``97 MB``, ``5 us``.

In memory a bandwidth is in bits per second, a size in bytes and a duration in seconds; a bare number in a file means
the same. Decimal and binary prefixes are told apart (``MB`` is 10^6 bytes, ``MiB`` is 2^20).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

_PATTERN = re.compile(r"\s*([+-]?[0-9.]+(?:[eE][+-]?[0-9]+)?)\s*([A-Za-z/]*)\s*")

BIT_RATES: Mapping[str, float] = {
    f"{prefix}{unit}": 10.0**exponent
    for prefix, exponent in (("", 0), ("k", 3), ("M", 6), ("G", 9), ("T", 12))
    for unit in ("bit/s", "bps")
}
SIZES: Mapping[str, float] = {
    **{f"{prefix}B": 10.0 ** (3 * i) for i, prefix in enumerate(("", "k", "M", "G", "T"))},
    **{f"{prefix}iB": 1024.0 ** (i + 1) for i, prefix in enumerate(("K", "M", "G", "T"))},
}
DURATIONS: Mapping[str, float] = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}


def _parser(*, what: str, example: str, units: Mapping[str, float], positive: bool) -> Callable[[Any], float]:
    expected = f"expected {what} such as {example!r} (units: {', '.join(units)}), or a number in {next(iter(units))}"

    def parse(value: Any) -> float:
        factor = 1.0
        if isinstance(value, str):
            match = _PATTERN.fullmatch(value)
            unit = match.group(2) if match else None
            if match is None or (unit and unit not in units):
                raise PydanticCustomError("quantity", "{expected}, got {got}", {"expected": expected, "got": value})
            factor = units[unit] if unit else 1.0
            try:
                value = float(match.group(1))
            except ValueError:
                value = None
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise PydanticCustomError("quantity", "{expected}", {"expected": expected})
        if value < 0 or (positive and value == 0):
            limit = "greater than zero" if positive else "zero or more"
            raise PydanticCustomError(
                "quantity", "{expected}; it must be {limit}", {"expected": expected, "limit": limit}
            )
        return float(value) * factor

    return parse


def _schema(units: Mapping[str, float]) -> WithJsonSchema:
    pattern = rf"^\s*[0-9.]+([eE][+-]?[0-9]+)?\s*({'|'.join(map(re.escape, units))})?\s*$"
    return WithJsonSchema({"anyOf": [{"type": "number", "minimum": 0}, {"type": "string", "pattern": pattern}]})


def _kind(what: str, example: str, units: Mapping[str, float], *, positive: bool) -> tuple[Any, Any]:
    return BeforeValidator(_parser(what=what, example=example, units=units, positive=positive)), _schema(units)


_RATE = _kind("a bandwidth", "25 Gbit/s", BIT_RATES, positive=True)
_SIZE = _kind("a size", "97 MB", SIZES, positive=True)
_TIME = _kind("a duration", "5 us", DURATIONS, positive=False)

BitsPerSecond = Annotated[float, _RATE[0], _RATE[1]]
Bytes = Annotated[float, _SIZE[0], _SIZE[1]]
Seconds = Annotated[float, _TIME[0], _TIME[1]]


def format_rate(bits_per_second: float) -> str:
    """``1.25e10`` as ``12.5 Gbit/s``."""
    for unit in ("Tbit/s", "Gbit/s", "Mbit/s", "kbit/s"):
        if bits_per_second >= BIT_RATES[unit]:
            return f"{bits_per_second / BIT_RATES[unit]:.4g} {unit}"
    return f"{bits_per_second:.4g} bit/s"


def format_size(size_bytes: float) -> str:
    """``9.7e7`` as ``97 MB``."""
    for unit in ("TB", "GB", "MB", "kB"):
        if size_bytes >= SIZES[unit]:
            return f"{size_bytes / SIZES[unit]:.4g} {unit}"
    return f"{size_bytes:.4g} B"


def format_time(seconds: float) -> str:
    """``0.0125`` as ``12.5 ms``."""
    if math.isinf(seconds):
        return "never"
    for unit in ("s", "ms", "us"):
        if seconds >= DURATIONS[unit]:
            return f"{seconds / DURATIONS[unit]:.4g} {unit}"
    return f"{seconds / DURATIONS['ns']:.4g} ns"
