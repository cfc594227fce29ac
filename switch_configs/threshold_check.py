"""Compares the loss model's predictions with the packet simulation, class by class.

The simulation contains what the model omits: real interruptions by the classes above, equal packets, a whole step sent
at once. Losses are fractions of the packets offered.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mlt.switch_configs.queue_simulation import ClassParameters, Measured, simulate, simulate_step
from mlt.switch_configs.thresholds import ClassThresholds, Problem

_PACKETS = 400_000
_BURSTS = 3_000  # min number, of all classes together
_MAX_PACKETS = 2_000_000
# With fewer bursts of a class, a loss of a few percent is chance.
MIN_BURSTS = 30
# Packets of one class that a worker sends in a step without rate control, for ``in_one_step``.
STEP_PACKETS = 8_000
_MAX_STEP_PACKETS = 400_000  # of all workers together


@dataclass(frozen=True, kw_only=True)
class Checked:
    """One class's prediction and measurement. ``bursts``: number of bursts of the measurement."""

    predicted_small: float
    predicted_large: float
    simulated: Measured
    bursts: int

    @property
    def enough(self) -> bool:
        """Whether the class sent enough bursts for significant losses."""
        return self.bursts >= MIN_BURSTS

    @property
    def error(self) -> float:
        """The larger of the two absolute errors; a prediction above the measurement is an error too."""
        return max(abs(self.predicted_small - self.simulated.small), abs(self.predicted_large - self.simulated.large))


def parameters(problem: Problem, rows: Sequence[ClassThresholds]) -> tuple[ClassParameters, ...]:
    """The classes for the simulation: offered loads, not loads relative to the remaining capacity."""
    total = sum(entry.size_bytes for entry in problem.classes)
    return tuple(
        ClassParameters(
            load=problem.load * entry.size_bytes / total,
            small_ratio=problem.small_ratio,
            threshold=row.threshold_bytes // problem.packet_bytes,
            limit=row.limit_bytes // problem.packet_bytes,
        )
        for entry, row in zip(problem.classes, rows, strict=True)
    )


def check_predictions(problem: Problem, rows: Sequence[ClassThresholds], *, seed: int = 1) -> tuple[Checked, ...]:
    """Simulate the whole port with the problem's bursts; classes from the highest priority down."""
    burst = problem.group_packets
    packets = min(max(_PACKETS, _BURSTS * burst), _MAX_PACKETS)
    measured = simulate(parameters(problem, rows), packets=packets, seed=seed, burst=burst, equal_packets=True)
    return tuple(
        Checked(
            predicted_small=row.small_loss,
            predicted_large=row.large_loss,
            simulated=found,
            bursts=found.offered // burst,
        )
        for row, found in zip(rows, measured, strict=True)
    )


def in_one_step(problem: Problem, rows: Sequence[ClassThresholds], *, seed: int = 1) -> tuple[Measured, ...]:
    """Losses if the workers send a whole step at the port's rate, which the model does not describe."""
    maximum = min(STEP_PACKETS, max(1, _MAX_STEP_PACKETS // (problem.workers * len(problem.classes))))
    packets = [min(maximum, -(-entry.size_bytes // problem.packet_bytes)) for entry in problem.classes]
    return simulate_step(parameters(problem, rows), packets=packets, workers=problem.workers, seed=seed)
