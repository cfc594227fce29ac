"""The figures, the page and the pictures of torch_accuracy."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mlt._shared.counts import count_of
from mlt._shared.output_files import write_figure
from mlt.demo.report import RunReport, common_accuracy, step_ends

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = ("#999999", "#222222", "#4477aa", "#228833", "#ee6677", "#aa3377", "#ccbb44")


@dataclass(frozen=True)
class Point:
    """Test accuracy after ``step`` steps, which took ``seconds``, evaluations not counted."""

    step: int
    seconds: float
    accuracy: float


@dataclass(frozen=True)
class Run:
    """One training, on the day ``date``. ``accuracy`` is that at the end, ``missing`` the share of its gradients:
    fractions."""

    study: str
    loss: str
    kind: str
    seed: int
    date: str
    steps_per_second: float
    accuracy: float
    missing: float
    curve: list[Point]

    def first(self, accuracy: float) -> Point:
        """The first evaluation with this accuracy, which there must be."""
        return next(point for point in self.curve if point.accuracy >= accuracy)


def run_of(study: str, loss: str, kind: str, date: str, report: RunReport) -> Run:
    """The figures of a training of the demo."""
    ends = step_ends(report)
    curve = [Point(point.step, ends[point.step - 1], point.accuracy) for point in report.evaluations]
    speed, missing = report.steps_per_second, report.gradient_loss
    return Run(study, loss, kind, report.seed, date, speed, report.test_accuracy, missing, curve)


def runs_in(file: Sequence[Mapping[str, Any]]) -> list[Run]:
    """The runs that the file of all has."""
    return [Run(**{**one, "curve": [Point(**point) for point in one["curve"]]}) for one in file]


def picture(study: str, loss: str) -> str:
    """The file of the curves."""
    return f"torch-accuracy-{study}-{loss.rstrip('%')}.png"


def page(runs: Sequence[Run], titles: Mapping[str, str]) -> str:
    parts = [
        """# Time to accuracy of PyTorch's DDP on a testbed

Four workers of the demo's training, over links of 200 Mbit/s, those of the last table of 100 Mbit/s and beside TCP of
another job, on a machine with 2 shared cores for workers and switches. Means over the seeds, and the sample standard
deviation; a seed is that of the weights, the order of the images and the lost packets. The accuracy is that on all test
images after the last step. The time to an accuracy counts steps, not evaluations, up to the first evaluation on 1,000
test images that reaches it: the highest multiple of 5 % that every run of the table reached. gloo's TCP uses cubic.
"""
    ]
    for study, loss in dict.fromkeys((run.study, run.loss) for run in runs):
        own = [run for run in runs if (run.study, run.loss) == (study, loss)]
        seeds = sorted({run.seed for run in own})
        steps = max(point.step for run in own for point in run.curve)
        options = f"--studies {study} --seeds {','.join(map(str, seeds))} --steps {steps}"
        days = " and ".join(sorted({run.date for run in own}))
        parts.append(
            f'## {titles[study]}, {loss} loss\n\n`make torch-accuracy ACCURACY_ARGS="{options}"`, {days}: '
            f"{count_of(len(seeds), 'seed')}.\n\n{table(own)}\n\n![accuracy by time]({picture(study, loss)})\n"
        )
    return "\n".join(parts)


def table(runs: Sequence[Run]) -> str:
    """One row for each kind; all runs are of one study and loss."""
    columns: dict[str, tuple[Callable[[Run], float], str]] = {
        "steps/s": (lambda run: run.steps_per_second, "{:.1f}"),
        "accuracy, %": (lambda run: 100 * run.accuracy, "{:.2f}"),
    }
    target = common_accuracy([point.accuracy for point in run.curve] for run in runs)
    if target is not None:
        columns[f"seconds to {100 * target:.0f} %"] = (lambda run: run.first(target).seconds, "{:.1f}")
        columns[f"steps to {100 * target:.0f} %"] = (lambda run: float(run.first(target).step), "{:.0f}")
    columns["gradients missing, %"] = (lambda run: 100 * run.missing, "{:.2f}")
    lines = ["| | " + " | ".join(columns) + " |", "|---|" + "---|" * len(columns)]
    for kind in dict.fromkeys(run.kind for run in runs):
        own = [run for run in runs if run.kind == kind]
        cells = [spread([figure(run) for run in own], form) for figure, form in columns.values()]
        lines.append(f"| {kind} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def spread(values: Sequence[float], form: str) -> str:
    """The mean, and the sample standard deviation if there are several values."""
    mean = form.format(statistics.fmean(values))
    return mean if len(values) == 1 else f"{mean} ± {form.format(statistics.stdev(values))}"


def write_pictures(runs: Sequence[Run], folder: Path) -> None:
    """The accuracy over time of each study and loss: every seed's curve, and a wide one of their means."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    for study, loss in dict.fromkeys((run.study, run.loss) for run in runs):
        figure, ax = pyplot.subplots(figsize=(7, 4.2), layout="constrained")
        own = [run for run in runs if (run.study, run.loss) == (study, loss)]
        for number, kind in enumerate(dict.fromkeys(run.kind for run in own)):
            _curves(ax, [run.curve for run in own if run.kind == kind], kind, COLOURS[number])
        ax.set(xlabel="seconds of training", ylabel="test accuracy, %", title=f"{loss} loss")
        ax.grid(visible=True, alpha=0.3)
        ax.legend(fontsize=8)
        write_figure(folder / picture(study, loss), figure, dpi=110)
        pyplot.close(figure)


def _curves(ax: Axes, curves: Sequence[Sequence[Point]], kind: str, colour: str) -> None:
    times = [[point.seconds for point in curve] for curve in curves]
    accuracies = [[100 * point.accuracy for point in curve] for curve in curves]
    for seconds, values in zip(times, accuracies, strict=True):
        ax.plot(seconds, values, color=colour, linewidth=0.6, alpha=0.35)
    ax.plot(np.mean(times, axis=0), np.mean(accuracies, axis=0), color=colour, linewidth=2, label=kind)
