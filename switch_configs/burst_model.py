"""Loss rates of one class whose packets arrive in bursts: the exact Markov chain of a queue with batch arrivals.

Packets of a training step arrive in bursts: a host sends several packets back to back, and workers in step send
together. So batches of ``burst`` packets arrive at Poisson instants. Each packet is small with probability theta. Below
S all packets enter, from S to L only large ones, at L none. A batch is served in up to ``STAGES`` exponential stages,
so its service time varies little, like that of equal packets. One stage and a burst of one packet is ``shared_loss``.

Derivation: docs/switch-thresholds.md. Lengths in packets, loads as arrival over service rate, losses as fractions.
"""

from __future__ import annotations

from functools import lru_cache
from math import comb

import numpy as np
from mlt.switch_configs.queue_model import Loss, shared_loss
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]
STAGES = 8
_LARGEST = 1e150  # weights are scaled down before they overflow


def burst_loss(load: float, small_ratio: float, threshold: ArrayLike, limit: ArrayLike, burst: int) -> Loss:
    """Losses of small and large packets when they arrive ``burst`` at a time; arrays of one shape, S <= L.

    Raises:
        ValueError: a load, ratio or burst out of range, or a threshold that holds less than one packet.
    """
    s, length = np.broadcast_arrays(np.asarray(threshold, dtype=np.float64), np.asarray(limit, dtype=np.float64))
    if burst < 1:
        raise ValueError(f"burst {burst} must be at least 1 packet")
    if burst == 1:
        return shared_loss(load, small_ratio, s, length)
    if load <= 0 or not 0 < small_ratio < 1:
        raise ValueError(f"load {load} must be positive and small_ratio {small_ratio} between 0 and 1")
    if np.any(s < 1) or np.any(length < s):
        raise ValueError("needs 1 <= threshold <= limit")
    stages = min(burst, STAGES)
    places = np.floor(s * stages / burst).astype(np.int64)
    maximum = np.maximum(np.floor(length * stages / burst).astype(np.int64), places)
    distinct, column = np.unique(places, return_inverse=True)
    return _losses(load, 1 - small_ratio, stages, distinct, column.reshape(s.shape), maximum)


@lru_cache(maxsize=64)
def _tail(trials: int, chance: float) -> Array:
    """[r, x]: probability of at least x successes in r trials, for r up to ``trials`` and x up to trials + 1."""
    table = np.zeros((trials + 1, trials + 2))
    for r in range(trials + 1):
        exact = [comb(r, x) * chance**x * (1 - chance) ** (r - x) for x in range(r + 1)]
        for x in range(r + 1):
            table[r, x] = sum(exact[x:])
    return table


def _crossing(stages: int, large: float) -> Array:
    """[n - S clipped to -1..stages, j]: probability that a batch that finds n - j places taken takes more than n."""
    tail = _tail(stages, large)
    table = np.ones((stages + 2, stages))
    for beyond in range(stages + 1):  # n = S + beyond
        for j in range(stages):
            start = beyond - j  # above S if positive
            table[beyond + 1, j] = tail[stages - max(0, -start), min(stages + 1, beyond + 1 - max(start, 0))]
    return table


def _losses(
    load: float,
    large: float,
    stages: int,
    s: NDArray[np.int64],
    column: NDArray[np.int64],
    maximum: NDArray[np.int64],
) -> Loss:
    """Every S in one pass over n: by cuts, the chain's weights up to n are equal for every L from n on."""
    crossing = _crossing(stages, large)
    missed = np.vstack([np.zeros((1, stages + 2)), np.cumsum(_tail(stages, large), axis=0)])  # [r, x]: sum over i < r
    back = np.arange(2 * stages + 1)
    # Weights of n, n - 1, ...: the states from which a batch can reach n.
    window = np.zeros((len(back), len(s)))
    window[0] = 1.0
    total, late_weights = np.zeros(len(s)), np.zeros(len(s))
    end = int(maximum.max())
    small, gone = np.zeros((end + 1, len(s))), np.zeros((end + 1, len(s)))
    # No np.clip in the loop: of arrays this small, it takes longer to check its bounds than to apply them.
    for n in range(end + 1):
        # Packets of a batch that find a queue of S or more, by the queue that the batch finds.
        late = np.maximum(stages - np.maximum(0, s[None, :] - (n - back)[:, None]), 0)
        total += window[0]
        late_weights += window[0] * late[0]
        small[n] = late_weights / (stages * total)
        # Of those, the large ones that find L = n.
        needed = np.minimum(np.maximum(n - np.maximum((n - back)[:, None], s[None, :]), 0), stages + 1)
        gone[n] = np.sum(window * missed[late, needed], axis=0) / (stages * total)
        chance = crossing[np.minimum(np.maximum(n - s, -1), stages) + 1]
        following = load / stages * np.einsum("jc,cj->c", window[:stages], chance)
        window[1:] = window[:-1]
        window[0] = following
        if following.max() > _LARGEST:
            scale = np.maximum(1.0, following)
            window, total, late_weights = window / scale, total / scale, late_weights / scale
    return Loss(np.clip(small[maximum, column], 0, 1), np.clip(gone[maximum, column], 0, 1))
