"""Norms of all ranks' tensors, compared before they are reduced: one host's corrupt memory must not become every rank's
model.

An element whose exponent was damaged makes its tensor's norm far greater than the others'; ``check_finite`` of a
collective finds only NaNs and infinities. The ranks exchange eight bytes each, so that all come to the same result.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from mlt import _core
from mlt.errors import CancelledError, ConfigError


@dataclass(frozen=True)
class NormCheck:
    """Result of ``Context.check_norms``, the same at every rank.

    ``norms``: Euclidean, of each rank's tensors, by rank. ``dropped``: the ranks whose tensors were set to zero.
    """

    norms: dict[int, float]
    dropped: tuple[int, ...] = ()

    @property
    def scale(self) -> float:
        """Factor that makes the mean over all ranks the mean over those that were not dropped.

        >>> NormCheck({0: 1.0, 1: 1.1, 2: 9e9, 3: 0.9}, dropped=(2,)).scale
        1.3333333333333333
        """
        return len(self.norms) / (len(self.norms) - len(self.dropped))


def norm_of(tensors: Sequence[Any], dtype: str | None) -> float:
    """
    >>> norm_of([array("f", [3]), array("d", [4])], None)
    5.0
    """
    return math.sqrt(sum(_core.sum_of_squares(tensor, dtype or "") for tensor in tensors))


def exchanged(own: float, ranks: int, gather: Callable[[Any, Any], Any]) -> list[float]:
    """The numbers of all members. ``gather``: their all-gather."""
    all_ = array("d", bytes(8 * ranks))
    gather(all_, array("d", [own]))
    return all_.tolist()


def outliers(norms: dict[int, float], max_ratio: float) -> tuple[int, ...]:
    """The ranks whose norm is not finite, or above ``max_ratio`` times the median of those that are, of two the
    smaller. Where that is 0, only norms that are not finite count.

    >>> outliers({0: 1.0, 1: 1.2, 2: 150.0, 3: float("nan")}, 100)
    (2, 3)
    >>> outliers({0: 150.0, 1: 1.0}, 100), outliers({0: 0.0, 1: 0.0, 2: 5.0}, 100)
    ((0,), ())
    """
    finite = sorted(norm for norm in norms.values() if math.isfinite(norm))
    median = finite[(len(finite) - 1) // 2] if finite else 0.0
    limit = max_ratio * median if median > 0 else math.inf
    return tuple(rank for rank, norm in norms.items() if not math.isfinite(norm) or norm > limit)


def checked(norms: dict[int, float], max_ratio: float, max_dropped: int) -> NormCheck:
    """Raises CancelledError if more than ``max_dropped`` ranks, or all, are outliers.

    >>> checked({0: 1.0, 1: 1.1, 2: 9e9}, 100, max_dropped=1).dropped
    (2,)
    """
    found = outliers(norms, max_ratio)
    if len(found) <= max_dropped and len(found) < len(norms):
        return NormCheck(norms, found)
    finite = sorted(norm for norm in norms.values() if math.isfinite(norm))
    median = f"{finite[(len(finite) - 1) // 2]:.6g}" if finite else "not finite either"
    named = ", ".join(f"rank {rank}'s tensors is {norms[rank]:.6g}" for rank in found)
    raise CancelledError(
        f"the norm of {named}, and the median of all ranks' is {median} (check_norms, max_ratio {max_ratio:g}): "
        "look at what was computed there, or let such ranks be dropped with max_dropped",
        peer=found[0],
    )


def check_limits(max_ratio: float, max_dropped: int) -> None:
    """Raises ConfigError."""
    if not max_ratio > 1:
        raise ConfigError(f"max_ratio is {max_ratio!r}; it is a number above 1, such as 100")
    if max_dropped < 0:
        raise ConfigError(f"max_dropped is {max_dropped!r}; it is a number of ranks, at least 0")
