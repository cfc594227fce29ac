"""The error of this package, and checks of single numbers; has no dependencies."""

from __future__ import annotations

import math


class TopologyError(ValueError):
    """An impossible network, or a request it cannot serve. The message names the object, the cause and the fix."""


def require_count(name: str, value: int, *, at_least: int = 1, at_most: int | None = None) -> int:
    """Check a count of network elements; returns it."""
    if isinstance(value, bool) or not isinstance(value, int) or value < at_least:
        raise TopologyError(f"{name} must be an integer of at least {at_least}, got {value!r}")
    if at_most is not None and value > at_most:
        raise TopologyError(f"{name} must be an integer from {at_least} to {at_most}, got {value!r}")
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
