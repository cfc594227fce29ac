"""The error of this package, defaults and checks of single numbers; has no dependencies."""

from __future__ import annotations

import math

#: One way, per link; section 4.2 of the PSNet paper.
DEFAULT_LATENCY_SECONDS = 20e-6
DEFAULT_BITS_PER_SECOND = 10e9


class TopologyError(ValueError):
    """An impossible network, or a request it cannot serve. The message names the object, the cause and the fix."""


def require_count(name: str, value: int, *, minimum: int = 1, maximum: int | None = None) -> int:
    """Check a count of network elements; returns it."""
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise TopologyError(f"{name} must be an integer of at least {minimum}, got {value!r}")
    if maximum is not None and value > maximum:
        raise TopologyError(f"{name} must be an integer from {minimum} to {maximum}, got {value!r}")
    return value


def require_positive(name: str, value: float) -> float:
    """Check a rate, size or duration that must be finite and above zero; returns it as a float."""
    if not (isinstance(value, (int, float)) and math.isfinite(value) and value > 0):
        raise TopologyError(f"{name} must be a finite number above zero, got {value!r}")
    return float(value)


def require_not_negative(name: str, value: float) -> float:
    """Check a quantity that must be finite and may be zero; returns it as a float."""
    if not (isinstance(value, (int, float)) and math.isfinite(value) and value >= 0):
        raise TopologyError(f"{name} must be a finite number of at least zero, got {value!r}")
    return float(value)
