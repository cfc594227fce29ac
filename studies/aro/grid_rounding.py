"""From GRID's fractional choices to one aggregator per worker: the readings that the ARO paper leaves open.

* ``draw``: every worker draws, with the fractions as probabilities (randomised rounding as its name says).
* ``most``: every worker takes its largest fraction.
* ``open``: an aggregator is open with the largest fraction that any worker gives it; workers draw among the open ones,
  and send straight to the PS if none is.
* ``open or straight``: as ``draw``, but a worker whose aggregator is not open sends straight.

Each may be enforced: a switch takes no more workers than its capacity holds at line rate, and the others, drawn by lot,
go through it unmerged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from random import Random
from typing import Literal

Rounding = Literal["draw", "most", "open", "open or straight"]
DIRECT = ""  # no aggregator

Shares = Mapping[str, Mapping[str, float]]  # leaf -> aggregator -> number of its workers


def round_shares(
    by_leaf: Mapping[str, Sequence[str]], shares: Shares, random: Random, *, rounding: Rounding = "draw"
) -> dict[str, str]:
    """Worker -> aggregator, or ``DIRECT``."""
    opened = _opened(by_leaf, shares, random) if rounding.startswith("open") else set()
    chosen = {}
    for leaf, workers in by_leaf.items():
        found = [(name, share) for name, share in shares[leaf].items() if share > 1e-9]
        usable = [(name, share) for name, share in found if name in opened] if rounding == "open" else found
        for worker in workers:
            if not usable:
                choice = DIRECT
            elif rounding == "most":
                choice = max(usable, key=lambda pair: pair[1])[0]
            else:
                choice = random.choices([name for name, _ in usable], weights=[share for _, share in usable])[0]
            if rounding == "open or straight" and choice not in opened:
                choice = DIRECT
            chosen[worker] = choice
    return chosen


def _opened(by_leaf: Mapping[str, Sequence[str]], shares: Shares, random: Random) -> set[str]:
    largest: dict[str, float] = {}
    for leaf, workers in by_leaf.items():
        for name, share in shares[leaf].items():
            largest[name] = max(largest.get(name, 0.0), share / len(workers))
    return {name for name, share in largest.items() if name != DIRECT and random.random() < share}


def enforce_capacity(chosen: Mapping[str, str], most: int, random: Random) -> dict[str, str]:
    """``chosen`` with at most ``most`` workers per aggregator; the others, drawn by lot, send straight."""
    order = list(chosen)
    random.shuffle(order)
    taken: Counter[str] = Counter()
    out = {}
    for worker in order:
        name = chosen[worker]
        taken[name] += 1
        out[worker] = DIRECT if taken[name] > most else name
    return {worker: out[worker] for worker in chosen}
