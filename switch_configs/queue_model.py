"""Loss rates of one priority class whose queue drops small gradients at S and all packets at L.

Source: paper, appendix B; derived again in docs/switch-thresholds.md, because the printed formulas mix exponents.
Lengths in packets, loads as arrival over service rate, losses as fractions of the packets offered.
Two models: ``split_loss`` is the paper's (two separate M/M/1/m queues), ``shared_loss`` the exact Markov chain of one
FIFO that both kinds share, which is what a switch has.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Loss:
    """Loss of small and of large gradients' packets; arrays of one shape."""

    small: Array
    large: Array


def _log_geometric(ratio: float, terms: Array) -> Array:
    """log(1 + x + ... + x^(n-1)) for n >= 1 terms, without overflow for any x > 0."""
    if abs(ratio - 1) < 1e-12:
        return np.asarray(np.log(terms))
    if ratio > 1:
        return np.asarray((terms - 1) * np.log(ratio) + _log_geometric(1 / ratio, terms))
    return np.asarray(np.log(-np.expm1(terms * np.log(ratio))) - np.log1p(-ratio))


def mm1m_loss(load: float, capacity: ArrayLike) -> Array:
    """P(an M/M/1/m system is full) = load^m / (1 + load + ... + load^m), for m >= 0 packets (reals allowed)."""
    if load <= 0:
        raise ValueError(f"load {load} must be positive")
    m = np.asarray(capacity, dtype=np.float64)
    if np.any(m < 0):
        raise ValueError("capacity must not be negative")
    return np.asarray(np.exp(m * np.log(load) - _log_geometric(load, m + 1)))


def split_loss(load: float, small_ratio: float, threshold: ArrayLike, limit: ArrayLike) -> Loss:
    """The paper's model: small gradients alone in theta*S places, large ones alone in L - theta*S, equal loads."""
    s, length = np.broadcast_arrays(np.asarray(threshold, dtype=np.float64), np.asarray(limit, dtype=np.float64))
    own = small_ratio * s
    return Loss(mm1m_loss(load, own), mm1m_loss(load, length - own))


def shared_loss(load: float, small_ratio: float, threshold: ArrayLike, limit: ArrayLike) -> Loss:
    """One FIFO: both kinds enter below S, only large ones from S to L. P(n) falls by load, then (1 - theta) load."""
    s, length = np.broadcast_arrays(np.asarray(threshold, dtype=np.float64), np.asarray(limit, dtype=np.float64))
    if load <= 0 or not 0 < small_ratio < 1:
        raise ValueError(f"load {load} must be positive and small_ratio {small_ratio} between 0 and 1")
    if np.any(s < 1) or np.any(length < s):
        raise ValueError("needs 1 <= threshold <= limit")
    upper = (1 - small_ratio) * load
    below = _log_geometric(load, s)
    base = s * np.log(load)
    above = base + _log_geometric(upper, length - s + 1)
    total = np.logaddexp(below, above)
    full = base + (length - s) * np.log(upper)
    return Loss(np.exp(above - total), np.exp(full - total))
