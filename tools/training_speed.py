"""Code shared by the measurements of training on a testbed: torch_speed, tensorflow_speed and mxnet_speed.

A worker prints one JSON object on its last line: ``seconds``, the times of its steps, and for the frameworks with an
environment of their own ``weights``, a digest or a sum that is the same on all ranks if the replicas agree.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rank_outputs import PIPES, results_of

# The median step in seconds of: kind, rate, loss, workers, width, steps.
OnTestbed = Callable[[str, str, str, int, int, int], float]


def median_of(results: Sequence[Mapping[str, Any]]) -> float:
    """Rank 0's median step in seconds; all ranks must have the same weights."""
    assert len({one["weights"] for one in results}) == 1, f"the replicas differ: {[one['weights'] for one in results]}"
    return statistics.median(results[0]["seconds"])


class Framework:
    """A framework with an environment of its own; ``train.py`` of ``folder`` is its worker.

    ``kinds``: column -> the worker's argument; speeds are given as multiples of the first column's.
    """

    def __init__(self, folder: Path, environment: str, kinds: Mapping[str, str], limit_seconds: float) -> None:
        self.python = folder.parents[1] / environment / "bin" / "python"
        self._train = folder / "train.py"
        self._kinds = kinds
        self._limit_seconds = limit_seconds

    def command(self, kind: str, width: int, steps: int) -> list[str]:
        """The command of a worker."""
        return [str(self.python), str(self._train), kind, str(width), str(steps)]

    def median_step(self, kind: str, loss: str, processes: Sequence[subprocess.Popen[Any]]) -> float:
        """In seconds, of the workers of one job, which are waited for."""
        return median_of(results_of(f"{kind}, {loss} loss", processes, self._limit_seconds))

    def _alone(self, kind: str, width: int, steps: int) -> float:
        """The median step of one process in seconds."""
        command = self.command(kind, width, steps)
        process = subprocess.Popen(command, **PIPES)
        return median_of(results_of(f"{kind}, one process", [process], self._limit_seconds))

    def main(self, on_testbed: OnTestbed, description: str, steps: int) -> None:
        """The program: measures what its options say, and prints a table. ``steps``: of a turn, by default."""
        parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
        parser.add_argument("--rate", default="200mbit")
        parser.add_argument("--losses", default="0%,1%")
        parser.add_argument("--workers", type=int, default=4)
        parser.add_argument("--width", type=int, default=512, help="of the hidden layers; 512: 1.1 MiB of gradients")
        parser.add_argument("--turns", type=int, default=3)
        parser.add_argument("--steps", type=int, default=steps)
        chosen = parser.parse_args()
        if not self.python.exists():
            environment = self.python.parents[1].name
            sys.exit(f"{self._train.parent.name}: {environment} is missing: make {environment}/.wheel")
        costs: dict[str, list[float]] = {"alone": [], "mlt": []}
        for _ in range(chosen.turns):
            for kind, times in costs.items():
                times.append(self._alone(kind, chosen.width, 10 * chosen.steps) * 1e3)
        plain, ours = (statistics.median(times) for times in costs.values())
        print(f"one process: {plain:.2f} ms per step, with mlt's exchange of one rank {ours:.2f} ms", flush=True)
        rows = [self._row(on_testbed, loss, chosen) for loss in chosen.losses.split(",")]
        print(f"\n| rate | loss | workers | {' | '.join(self._kinds)} |\n|---|---|---|{'---|' * len(self._kinds)}")
        print("\n".join(rows))

    def _row(self, on_testbed: OnTestbed, loss: str, chosen: argparse.Namespace) -> str:
        """Steps per second of each kind at this loss; the kinds take turns."""
        medians: dict[str, list[float]] = {name: [] for name in self._kinds}
        for turn in range(chosen.turns):
            for name, kind in self._kinds.items():
                seconds = on_testbed(kind, chosen.rate, loss, chosen.workers, chosen.width, chosen.steps)
                medians[name].append(seconds)
                print(f"{loss} loss, turn {turn + 1}: {name} {1 / seconds:.1f} steps/s", flush=True)
        speeds = [1 / statistics.median(times) for times in medians.values()]
        cells = [f"{speed:.1f} ({speed / speeds[0]:.2f} x)" for speed in speeds]
        return f"| {chosen.rate} | {loss} | {chosen.workers} | {' | '.join(cells)} |"
