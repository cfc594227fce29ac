"""Finds the largest IP packet that a path carries by sending; ICMP reports of routers help, but are not required."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Attempt:
    """Whether a packet of some size arrived; ``said``: the MTU that a router reported instead (0: no report)."""

    arrived: bool
    said: int = 0
    by: str = ""


@dataclass(frozen=True)
class PathMtu:
    """``packet``: the largest that arrives, 0 if none does. ``by``: the router that reported the limit; "" if none did
    and larger packets are dropped silently (an MTU black hole). ``whole``: the largest requested size arrives."""

    packet: int
    whole: bool
    by: str = ""


def find(attempt: Callable[[int], Attempt], minimum: int, maximum: int, hint: int = 0) -> PathMtu:
    """Search between ``minimum``, which every network carries, and ``maximum``. ``hint``: a size to try early."""
    first = attempt(maximum)
    if first.arrived:
        return PathMtu(maximum, True)
    if not attempt(minimum).arrived:
        return PathMtu(0, False)
    by = {first.said: first.by}
    low, high = minimum, maximum
    guess = first.said or hint
    while high - low > 1:
        size = guess if low < guess < high else (low + high) // 2
        was_guess, guess = size == guess, 0
        got = attempt(size)
        by[got.said] = got.by
        if got.arrived:
            low = size
            guess = size + 1 if was_guess else 0  # a correct guess is the result: the next larger size proves it
        else:
            high = size
            guess = got.said
    return PathMtu(low, False, by.get(low, "") if low else "")
