"""Finds S_i and L_i that minimise the extra convergence rounds of the losses they cause (paper, appendix B).

Exact on a grid. For a price per byte of limit, a dynamic programme over the classes finds the best thresholds with S
and L rising; bisection on the price meets the buffer. Loads of lower classes follow from the real throughput of the
classes above, found by fixed-point iteration. S is never below the packets that workers in step send at once: a shorter
queue would drop small gradients at any load. Sizes in bytes, loads as arrival over service rate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from mlt.switch_configs.burst_model import burst_loss
from mlt.switch_configs.model_layers import ModelClass
from mlt.switch_configs.queue_model import Loss, split_loss
from numpy.typing import NDArray

from mlt._shared.counts import count_of
from mlt._shared.units import format_size

Model = Literal["shared", "split"]
_ROUNDS_OF_REPETITION = 20
_BISECTIONS = 60
_MIN_PRICE = 1e-200  # extra rounds per byte: below, the formulas underflow
# A host sends packets back to back; one system call holds this much (64 KiB).
RUN_BYTES = 65_536
# The smallest RED step without rounding on every Spectrum ASIC: a multiple of 64 cells of 96, 144 and 192 B.
RED_STEP_BYTES = 36864
# Min service of a class below an overloaded one; its load must stay finite for the formulas.
_MIN_SERVICE = 1e-6


@dataclass(frozen=True, kw_only=True)
class ClassThresholds:
    """One class's result: thresholds, its offered load, and the losses the model predicts."""

    threshold_bytes: int
    limit_bytes: int
    load: float
    small_loss: float
    large_loss: float
    extra_rounds: float


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """Traffic at a port and how to model it. ``load``: all data's arrival over the port's service rate; above 1 is
    congestion.

    ``workers`` send in step, each on ``paths`` paths that end at this port, ``burst_packets`` back to back on each
    (None: the capacity of one system call of the sender). ``small_ratio``: share of small gradients.
    """

    load: float
    small_ratio: float = 0.5
    granularity_bytes: int = RED_STEP_BYTES
    model: Model = "shared"
    workers: int = 1
    paths: int = 1
    burst_packets: int | None = None


@dataclass(frozen=True, kw_only=True)
class Problem(ModelOptions):
    """The optimisation problem: the options, the model's classes and the port's memory."""

    classes: tuple[ModelClass, ...]
    buffer_bytes: int
    packet_bytes: int

    @property
    def run_packets(self) -> int:
        """Packets that one host sends back to back on one path."""
        return max(1, RUN_BYTES // self.packet_bytes) if self.burst_packets is None else self.burst_packets

    @property
    def group_packets(self) -> int:
        """Packets that arrive together when the workers are in step."""
        return self.workers * self.paths * self.run_packets

    @property
    def floor_bytes(self) -> int:
        """The min S: the packets that arrive together, in whole steps of the granularity."""
        return -(-self.group_packets * self.packet_bytes // self.granularity_bytes) * self.granularity_bytes

    def min_bytes(self, classes: int) -> int:
        """Buffer for the min thresholds of ``classes`` classes: S rises by a step, L is a step above S."""
        step = self.granularity_bytes
        return classes * self.floor_bytes + step * classes * (classes + 1) // 2

    def __post_init__(self) -> None:
        steps = self.buffer_bytes // self.granularity_bytes
        if self.granularity_bytes < self.packet_bytes:
            raise ValueError(f"granularity {self.granularity_bytes} B must hold a packet of {self.packet_bytes} B")
        if min(self.workers, self.paths, self.run_packets) < 1:
            raise ValueError(
                f"workers {self.workers}, paths {self.paths} and burst_packets {self.run_packets}: at least 1 each"
            )
        if steps < 2 * len(self.classes):
            raise ValueError(
                f"{self.buffer_bytes} B in steps of {self.granularity_bytes} B leave {steps} values for "
                f"{len(self.classes)} classes; use a smaller granularity"
            )
        if not 0 < self.load < float("inf") or not 0 < self.small_ratio < 1:  # NaN too
            raise ValueError(f"load {self.load} must be positive and small_ratio {self.small_ratio} in (0, 1)")
        if self.min_bytes(len(self.classes)) > self.buffer_bytes:
            raise ValueError(self._too_much_at_once())

    def _too_much_at_once(self) -> str:
        one_more = self.granularity_bytes * (len(self.classes) + 1) / 2
        packets = int(self.buffer_bytes / len(self.classes) - one_more) // self.granularity_bytes
        packets = packets * self.granularity_bytes // self.packet_bytes
        fitting = max((n for n in range(1, len(self.classes)) if self.min_bytes(n) <= self.buffer_bytes), default=0)
        ways = [f"{count_of(fitting, 'class')} (--queues {fitting + 2})"] if fitting else []
        if packets >= self.workers * self.paths:
            ways.insert(0, f"bursts of {count_of(packets // (self.workers * self.paths), 'packet')} (--burst-packets)")
        if packets >= self.paths * self.run_packets:
            ways.insert(0, f"{count_of(packets // (self.paths * self.run_packets), 'worker')} in step (--workers)")
        out = "; it holds " + ", or ".join(ways) if ways else "; use a switch with more memory"
        burst = format_size(self.group_packets * self.packet_bytes)
        return (
            f"{count_of(self.workers, 'worker')} in step on {count_of(self.paths, 'path')}: "
            f"{count_of(self.group_packets, 'packet')} ({burst}) at once; "
            f"thresholds of {count_of(len(self.classes), 'class')} that hold that need "
            f"{format_size(self.min_bytes(len(self.classes)))}, the buffer has {format_size(self.buffer_bytes)}{out}"
        )


def _offered(problem: Problem) -> list[float]:
    total = sum(entry.size_bytes for entry in problem.classes)
    return [problem.load * entry.size_bytes / total for entry in problem.classes]


def class_loads(offered: Sequence[float], carried: Sequence[float]) -> list[float]:
    """Each class's load on the service that the classes above leave: 1 less their real throughput."""
    loads, used = [], 0.0
    for own, served in zip(offered, carried, strict=True):
        loads.append(own / max(_MIN_SERVICE, 1 - used))
        used += served
    return loads


def gathered_packets(problem: Problem, offered: Sequence[float], loads: Sequence[float]) -> list[int]:
    """Burst size of a class in packets: while the classes above are served, more of its bursts accumulate.

    A class with a share r of the port sees the port's backlog as 1 / r times as bursty (heavy traffic: the queue of the
    lowest busy class is nearly the whole port's).
    """
    maximum = problem.buffer_bytes // problem.packet_bytes
    return [
        max(1, min(maximum, round(problem.group_packets * load / own)))
        for own, load in zip(offered, loads, strict=True)
    ]


def predict(
    problem: Problem,
    load: float,
    threshold_bytes: NDArray[np.int64],
    limit_bytes: NDArray[np.int64],
    *,
    burst: int | None = None,
) -> Loss:
    """The model's losses for one class at the given load; arrays of one shape. ``burst``: packets that arrive together
    (None: the problem's)."""
    s, limit = threshold_bytes // problem.packet_bytes, limit_bytes // problem.packet_bytes
    if problem.model == "split":
        return split_loss(load, problem.small_ratio, s, limit)
    return burst_loss(load, problem.small_ratio, s, limit, problem.group_packets if burst is None else burst)


def _costs(
    problem: Problem, loads: Sequence[float], bursts: Sequence[int], grid: NDArray[np.int64]
) -> list[NDArray[np.float64]]:
    """Per class an array [S index, L index] of extra rounds; infinite where S >= L or S is below the floor."""
    s, limit = np.meshgrid(grid, grid, indexing="ij")
    allowed = (s < limit) & (s >= problem.floor_bytes)
    costs = []
    for entry, load, burst in zip(problem.classes, loads, bursts, strict=True):
        table = np.full(s.shape, np.inf)
        loss = predict(problem, load, s[allowed], limit[allowed], burst=burst)
        table[allowed] = 100 * (
            entry.rounds_per_percent_small * problem.small_ratio * loss.small
            + entry.rounds_per_percent_large * (1 - problem.small_ratio) * loss.large
        )
        costs.append(table)
    return costs


def _chain(costs: list[NDArray[np.float64]], grid: NDArray[np.int64], price: float) -> list[tuple[int, int]]:
    """Cheapest (S, L) indices per class with S strictly rising and L not falling, limits priced per byte."""
    tables = [costs[0] + price * grid]
    for cost in costs[1:]:
        best = np.minimum.accumulate(np.minimum.accumulate(tables[-1], axis=0), axis=1)
        before = np.full_like(best, np.inf)
        before[1:, :] = best[:-1, :]
        tables.append(cost + price * grid + before)
    s, limit = (int(i) for i in np.unravel_index(np.argmin(tables[-1]), tables[-1].shape))
    chosen = [(s, limit)]
    for table in reversed(tables[:-1]):
        window = table[:s, : limit + 1]
        s, limit = (int(i) for i in np.unravel_index(np.argmin(window), window.shape))
        chosen.append((s, limit))
    return chosen[::-1]


def _within_buffer(
    problem: Problem, costs: list[NDArray[np.float64]], grid: NDArray[np.int64]
) -> list[tuple[int, int]]:
    def total(chosen: list[tuple[int, int]]) -> int:
        return int(sum(grid[limit] for _, limit in chosen))

    free = _chain(costs, grid, 0.0)
    if total(free) <= problem.buffer_bytes:
        return free
    low, high = _MIN_PRICE, 1.0
    while total(_chain(costs, grid, high)) > problem.buffer_bytes:
        high *= 4
        if high > 1e12:
            raise ValueError("the buffer cannot hold the least thresholds; use a smaller granularity")
    best = _chain(costs, grid, high)
    for _ in range(_BISECTIONS):
        middle = (low * high) ** 0.5  # prices differ by orders of magnitude, as the losses do
        tried = _chain(costs, grid, middle)
        if total(tried) <= problem.buffer_bytes:
            high, best = middle, tried
        else:
            low = middle
    return best


def optimise(problem: Problem) -> tuple[ClassThresholds, ...]:
    """Thresholds for each class, highest priority first; raises ValueError if the buffer is too small."""
    steps = problem.buffer_bytes // problem.granularity_bytes
    grid = np.arange(1, steps + 1, dtype=np.int64) * problem.granularity_bytes
    offered = _offered(problem)
    carried = [min(own, 1.0) for own in offered]
    chosen: list[tuple[int, int]] = []
    loads: list[float] = []
    bursts: list[int] = []
    for _ in range(_ROUNDS_OF_REPETITION):
        loads = class_loads(offered, carried)
        bursts = gathered_packets(problem, offered, loads)
        previous, chosen = chosen, _within_buffer(problem, _costs(problem, loads, bursts, grid), grid)
        losses = [
            predict(problem, load, grid[s : s + 1], grid[limit : limit + 1], burst=burst)
            for load, burst, (s, limit) in zip(loads, bursts, chosen, strict=True)
        ]
        theta = problem.small_ratio
        carried = [
            own * (theta * (1 - float(loss.small[0])) + (1 - theta) * (1 - float(loss.large[0])))
            for own, loss in zip(offered, losses, strict=True)
        ]
        if chosen == previous:
            break
    return _result(problem, grid, chosen, loads, bursts)


def _result(
    problem: Problem, grid: NDArray[np.int64], chosen: list[tuple[int, int]], loads: list[float], bursts: list[int]
) -> tuple[ClassThresholds, ...]:
    found = []
    for entry, load, burst, (s, limit) in zip(problem.classes, loads, bursts, chosen, strict=True):
        loss = predict(problem, load, grid[s : s + 1], grid[limit : limit + 1], burst=burst)
        small, large = float(loss.small[0]), float(loss.large[0])
        rounds = 100 * (
            entry.rounds_per_percent_small * problem.small_ratio * small
            + entry.rounds_per_percent_large * (1 - problem.small_ratio) * large
        )
        found.append(
            ClassThresholds(
                threshold_bytes=int(grid[s]),
                limit_bytes=int(grid[limit]),
                load=load,
                small_loss=small,
                large_loss=large,
                extra_rounds=rounds,
            )
        )
    return tuple(found)
