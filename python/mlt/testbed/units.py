"""Rates, sizes, losses and delays as people write them: ``200mbit``, ``256KiB``, ``1%``, ``10ms``.

A text needs its unit, because ``200`` could mean anything; numbers from Python or YAML are in the base unit (bit/s,
bytes, fraction, nanoseconds). All parsers raise ValueError.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from decimal import Decimal

from mlt._shared.units import NUMBER, RATES, SIZES, scaled

_DELAYS = {"us": 10**3, "ms": 10**6, "s": 10**9}

# htb and tbf lose their accuracy below the first; a software switch cannot pretend to carry more than the second.
LEAST_RATE, MOST_RATE = 8_000, 100 * 10**9
LEAST_BUFFER, MOST_BUFFER = 2_000, 2**30
MOST_DELAY_NS = 10 * 10**9


def _scaled(value: object, units: Mapping[str, int], what: str, example: str) -> int:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError(f"{what} {value!r}: write it as {example}")
    if not isinstance(value, str):
        if not math.isfinite(value):
            raise ValueError(f"{what} {value!r}: write it as {example}")
        return round(value)
    return scaled(value, units, what, example)


def parse_rate(value: object) -> int:
    """Bits per second."""
    rate = _scaled(value, RATES, "rate", "200mbit")
    if not LEAST_RATE <= rate <= MOST_RATE:
        raise ValueError(f"rate {value!r}: between 8kbit and 100gbit")
    return rate


def parse_size(value: object) -> int:
    """Bytes."""
    size = _scaled(value, SIZES, "size", "256KiB")
    if not LEAST_BUFFER <= size <= MOST_BUFFER:
        raise ValueError(f"size {value!r}: between 2KB (one packet) and 1GiB")
    return size


def parse_loss(value: object) -> float:
    """A fraction in [0, 1]. A text needs its percent sign, unless it is 0."""
    if isinstance(value, str):
        match = NUMBER.fullmatch(value)
        if match is None or (match[2] != "%" and float(match[1]) != 0) or match[2] not in ("", "%"):
            raise ValueError(f"loss {value!r}: write it as 1%")
        fraction = float(Decimal(match[1]) / 100)
    elif isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"loss {value!r}: write it as 1%")
    else:
        fraction = float(value)
    if not 0 <= fraction <= 1:
        raise ValueError(f"loss {value!r}: between 0% and 100%")
    return fraction


def parse_delay(value: object) -> int:
    """Nanoseconds."""
    delay = _scaled(value, _DELAYS, "delay", "10ms")
    if not 0 <= delay <= MOST_DELAY_NS:
        raise ValueError(f"delay {value!r}: between 0ms and 10s")
    return delay


def format_rate(bits_per_second: float) -> str:
    """``200mbit``: the shortest text that parse_rate reads back (to three decimals)."""
    for unit, scale in reversed(RATES.items()):
        if bits_per_second >= scale:
            return f"{bits_per_second / scale:.3f}".rstrip("0").rstrip(".") + unit
    return f"{bits_per_second:g}bit"


def format_size(size: int) -> str:
    """``256KiB`` for whole units, bytes otherwise."""
    for unit, scale in (("MiB", 2**20), ("KiB", 2**10)):
        if size >= scale and size % scale == 0:
            return f"{size // scale}{unit}"
    return f"{size}B"


def format_loss(fraction: float) -> str:
    """``1%``."""
    return f"{fraction * 100:.4f}".rstrip("0").rstrip(".") + "%"
