"""Percentiles with their sample counts, and ratios of medians."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

QUANTILES = (0.5, 0.9, 0.99, 0.999)


def needed(quantile: float) -> int:
    """Min number of samples for a quantile: at least one must lie beyond it."""
    return 1 if quantile <= 0.5 else math.ceil(round(1 / (1 - quantile), 6))


def name_of(quantile: float) -> str:
    """Name of a quantile: ``p99.9``."""
    return f"p{quantile * 100:g}"


@dataclass(frozen=True)
class Summary:
    """Summary of ``count`` samples. A quantile is None if there are too few samples for it."""

    count: int
    mean: float
    quantiles: dict[float, float | None]

    @property
    def median(self) -> float:
        value = self.quantiles[0.5]
        assert value is not None
        return value

    def text(self, quantile: float, scale: float = 1.0, digits: int = 3) -> str:
        """The quantile times ``scale``; a dash if there are too few samples for it."""
        value = self.quantiles[quantile]
        return "-" if value is None else significant(value * scale, digits)


def summarise(samples: Sequence[float]) -> Summary:
    """Raises ValueError for no samples. Quantiles interpolate linearly, as numpy's do."""
    if not samples:
        raise ValueError("no samples")
    array = np.asarray(samples, dtype=np.float64)
    quantiles = {q: float(np.quantile(array, q)) if len(samples) >= needed(q) else None for q in QUANTILES}
    return Summary(len(samples), float(array.mean()), quantiles)


def significant(value: float, digits: int = 3) -> str:
    """``1,234`` or ``0.0123``: this many significant digits, and all digits before the point."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:,.{decimals}f}"


def cumulative(samples: Sequence[float]) -> tuple[list[float], list[float]]:
    """The empirical distribution: ascending samples, and the fraction at or below each."""
    ordered = sorted(samples)
    return ordered, [(i + 1) / len(ordered) for i in range(len(ordered))]
