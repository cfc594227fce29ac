"""A strict-priority port with thresholds, packet by packet: the check on ``queue_model``, not a network simulator.

Poisson arrivals, exponential service, strict priority without preemption, one server; a packet that finds n of its
class waiting or in service is dropped at n >= L, and at n >= S if it carries small gradients. Seeded, repeatable.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class ClassParameters:
    """Offered load (arrival over service rate), share of small-gradient packets, S and L in packets."""

    load: float
    small_ratio: float
    threshold: int
    limit: int


@dataclass(frozen=True)
class Measured:
    """Fractions lost of the packets offered, and how many were offered."""

    small: float
    large: float
    offered: int


def simulate(classes: Sequence[ClassParameters], *, packets: int, seed: int) -> tuple[Measured, ...]:
    """Run until ``packets`` arrived; classes from the highest priority down."""
    rng = random.Random(seed)
    total = sum(entry.load for entry in classes)
    if total <= 0:
        raise ValueError("the loads must add up to more than 0")
    cumulative, running = [], 0.0
    for entry in classes:
        running += entry.load
        cumulative.append(running)
    queued = [0] * len(classes)
    offered = [[0, 0] for _ in classes]
    lost = [[0, 0] for _ in classes]
    serving, departs_at, now = -1, 0.0, 0.0
    for _ in range(packets):
        now += rng.expovariate(total)
        while serving >= 0 and departs_at <= now:
            queued[serving] -= 1
            serving = next((index for index, count in enumerate(queued) if count), -1)
            departs_at += rng.expovariate(1.0) if serving >= 0 else 0.0
        pick = rng.random() * total
        index = next((i for i, edge in enumerate(cumulative) if pick < edge), len(classes) - 1)
        entry = classes[index]
        small = rng.random() < entry.small_ratio
        offered[index][small] += 1
        if queued[index] >= (entry.threshold if small else entry.limit):
            lost[index][small] += 1
            continue
        queued[index] += 1
        if serving < 0:
            serving, departs_at = index, now + rng.expovariate(1.0)
    return tuple(
        Measured(gone[1] / max(1, sent[1]), gone[0] / max(1, sent[0]), sum(sent))
        for sent, gone in zip(offered, lost, strict=True)
    )
