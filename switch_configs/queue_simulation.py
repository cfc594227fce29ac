"""A strict-priority port with thresholds, packet by packet: checks the loss models; not a network simulator.

Bursts arrive at Poisson instants, or workers send a whole training step at once. Strict priority without preemption,
one server; a packet that finds n of its class waiting or in service is dropped at n >= L, and at n >= S if it carries
small gradients. Seeded, repeatable.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class ClassParameters:
    """Offered load (arrival over service rate), fraction of small-gradient packets, S and L in packets."""

    load: float
    small_ratio: float
    threshold: int
    limit: int


@dataclass(frozen=True)
class Measured:
    """Fractions lost of the packets offered, and the number offered."""

    small: float
    large: float
    offered: int


class _Port:
    """Queues, server and counts. ``service`` gives one packet's time."""

    def __init__(self, classes: Sequence[ClassParameters], service: Callable[[], float]) -> None:
        self._capacity = [(entry.limit, entry.threshold) for entry in classes]  # of large packets, of small ones
        self._service = service
        self._queued = [0] * len(classes)
        self._offered = [[0, 0] for _ in classes]
        self._lost = [[0, 0] for _ in classes]
        self._serving = -1
        self._departs_at = 0.0

    def arrive(self, now: float, index: int, small: bool) -> None:
        """One packet of class ``index``; ``now`` never decreases."""
        if self._serving >= 0 and self._departs_at <= now:
            self._depart(now)
        self._offered[index][small] += 1
        queued = self._queued[index]
        if queued >= self._capacity[index][small]:
            self._lost[index][small] += 1
            return
        self._queued[index] = queued + 1
        if self._serving < 0:
            self._serving, self._departs_at = index, now + self._service()

    def _depart(self, now: float) -> None:
        """All whose service has ended; the highest class with a packet is served next."""
        queued, serving, departs_at = self._queued, self._serving, self._departs_at
        while serving >= 0 and departs_at <= now:
            queued[serving] -= 1
            serving = -1
            for index, count in enumerate(queued):
                if count:
                    serving = index
                    departs_at += self._service()
                    break
        self._serving, self._departs_at = serving, departs_at

    def measured(self) -> tuple[Measured, ...]:
        return tuple(
            Measured(gone[1] / max(1, sent[1]), gone[0] / max(1, sent[0]), sum(sent))
            for sent, gone in zip(self._offered, self._lost, strict=True)
        )


def simulate(
    classes: Sequence[ClassParameters], *, packets: int, seed: int, burst: int = 1, equal_packets: bool = False
) -> tuple[Measured, ...]:
    """Run until ``packets`` arrived; classes from the highest priority down.

    Args:
        burst: packets of one class that arrive at one instant.
        equal_packets: every packet takes the same time, as on a real port; otherwise times are exponential.
    """
    rng = random.Random(seed)
    total = sum(entry.load for entry in classes)
    if total <= 0:
        raise ValueError("the loads must add up to more than 0")
    if burst < 1:
        raise ValueError(f"burst {burst} must be at least 1 packet")
    cumulative, running = [], 0.0
    for entry in classes:
        running += entry.load
        cumulative.append(running)
    port = _Port(classes, (lambda: 1.0) if equal_packets else (lambda: rng.expovariate(1.0)))
    now = 0.0
    for _ in range(-(-packets // burst)):
        now += rng.expovariate(total / burst)
        pick = rng.random() * total
        index = next((i for i, edge in enumerate(cumulative) if pick < edge), len(classes) - 1)
        small_ratio = classes[index].small_ratio
        for _ in range(burst):
            port.arrive(now, index, rng.random() < small_ratio)
    return port.measured()


def simulate_step(
    classes: Sequence[ClassParameters], *, packets: Sequence[int], workers: int, seed: int
) -> tuple[Measured, ...]:
    """One training step without rate control: every worker sends at the port's rate, back layers first, in step.

    Args:
        packets: of each class, that each worker sends; the loads of ``classes`` are not used.
    """
    if workers < 1 or len(packets) != len(classes):
        raise ValueError(f"{workers} workers and {len(packets)} sizes for {len(classes)} classes")
    rng = random.Random(seed)
    port = _Port(classes, lambda: 1.0)
    now = 0.0
    for index in reversed(range(len(classes))):
        for _ in range(packets[index]):
            now += 1.0
            for _ in range(workers):
                port.arrive(now, index, rng.random() < classes[index].small_ratio)
    return port.measured()
