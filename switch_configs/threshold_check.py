"""Predictions against the packet simulation: what the loss model says of each class, and by how much it is wrong.

The simulation knows what the model leaves out: real interruptions by the classes above, equal packets, a whole step
sent at once. Losses are fractions of the packets offered.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mlt.switch_configs.queue_simulation import ClassParameters, Measured, simulate, simulate_step
from mlt.switch_configs.thresholds import ClassThresholds, Problem

_PACKETS = 400_000
_BURSTS = 3_000  # of all classes together, at least
_MAX_PACKETS = 2_000_000
# With fewer bursts of a class a loss of a few percent is luck.
MIN_BURSTS = 30
# Packets of one class that a worker sends in a step without rate control, for ``in_one_step``.
STEP_PACKETS = 8_000
_MAX_STEP_PACKETS = 400_000  # of all workers together


@dataclass(frozen=True, kw_only=True)
class Checked:
    """One class's prediction and measurement. ``bursts`` is how many the measurement rests on."""

    predicted_small: float
    predicted_large: float
    simulated: Measured
    bursts: int

    @property
    def enough(self) -> bool:
        """Whether the class sent enough bursts for its losses to mean something."""
        return self.bursts >= MIN_BURSTS

    @property
    def error(self) -> float:
        """The larger of the two absolute errors; a prediction above the measurement counts as one too."""
        return max(abs(self.predicted_small - self.simulated.small), abs(self.predicted_large - self.simulated.large))


def parameters(problem: Problem, rows: Sequence[ClassThresholds]) -> tuple[ClassParameters, ...]:
    """The classes as the simulation takes them: loads are those offered, not those on what is left over."""
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
    """What is lost when the workers send a whole step at the port's rate, which the model does not describe."""
    most = min(STEP_PACKETS, max(1, _MAX_STEP_PACKETS // (problem.workers * len(problem.classes))))
    packets = [min(most, -(-entry.size_bytes // problem.packet_bytes)) for entry in problem.classes]
    return simulate_step(parameters(problem, rows), packets=packets, workers=problem.workers, seed=seed)
