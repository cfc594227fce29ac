"""The page and the pictures of torch_accuracy."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mlt._shared.output_files import write_figure
from mlt.demo.report import RunReport, common_accuracy, seconds_to, step_ends

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = ("#999999", "#222222", "#4477aa", "#228833", "#ee6677", "#aa3377", "#ccbb44")


@dataclass(frozen=True)
class Run:
    study: str
    loss: str
    kind: str
    report: RunReport


def picture(study: str, loss: str) -> str:
    """The file of the curves."""
    return f"torch-accuracy-{study}-{loss.rstrip('%')}.png"


def page(runs: Sequence[Run], titles: Mapping[str, str], made: str) -> str:
    first = runs[0].report
    seeds = len({run.report.seed for run in runs})
    steps = len({step.step for step in first.steps})
    parts = [
        f"""# Time to accuracy of PyTorch's DDP on a testbed

{made}, on a machine with 2 shared cores
for workers and switches. Four workers of the demo's training ({steps} steps, {first.parameters:,} parameters) over
links of 200 Mbit/s. Mean of {seeds} seeds, and the sample standard deviation; a seed is that of the weights, the order
of the images and the lost packets. The accuracy is that on all test images after the last step. The time to an accuracy
counts steps, not evaluations, up to the first evaluation on 1,000 test images that reaches it: the highest multiple of
5 % that every run of the table reached. gloo's TCP uses cubic.
"""
    ]
    for study, loss in dict.fromkeys((run.study, run.loss) for run in runs):
        own = [run for run in runs if (run.study, run.loss) == (study, loss)]
        parts.append(
            f"## {titles[study]}, {loss} loss\n\n{table(own)}\n\n![accuracy by time]({picture(study, loss)})\n"
        )
    return "\n".join(parts)


def table(runs: Sequence[Run]) -> str:
    """One row for each kind; all runs are of one study and loss."""
    target = common_accuracy([run.report for run in runs])
    columns: dict[str, tuple[Callable[[RunReport], float], str]] = {
        "steps/s": (lambda run: run.steps_per_second, "{:.1f}"),
        "accuracy, %": (lambda run: 100 * run.test_accuracy, "{:.2f}"),
    }
    if target is not None:
        columns[f"seconds to {100 * target:.0f} %"] = (lambda run: seconds_to(run, target), "{:.1f}")
        columns[f"steps to {100 * target:.0f} %"] = (lambda run: float(steps_to(run, target)), "{:.0f}")
    columns["gradients missing, %"] = (lambda run: 100 * run.gradient_loss, "{:.2f}")
    lines = ["| | " + " | ".join(columns) + " |", "|---|" + "---|" * len(columns)]
    for kind in dict.fromkeys(run.kind for run in runs):
        reports = [run.report for run in runs if run.kind == kind]
        cells = [spread([figure(one) for one in reports], form) for figure, form in columns.values()]
        lines.append(f"| {kind} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def steps_to(run: RunReport, accuracy: float) -> int:
    """Steps until the test accuracy first was this one, which it was."""
    return min(point.step for point in run.evaluations if point.accuracy >= accuracy)


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
            _curves(ax, [run.report for run in own if run.kind == kind], kind, COLOURS[number])
        ax.set(xlabel="seconds of training", ylabel="test accuracy, %", title=f"{loss} loss")
        ax.grid(visible=True, alpha=0.3)
        ax.legend(fontsize=8)
        write_figure(folder / picture(study, loss), figure, dpi=110)
        pyplot.close(figure)


def _curves(ax: Axes, reports: Sequence[RunReport], kind: str, colour: str) -> None:
    times, accuracies = [], []
    for report in reports:
        ends = step_ends(report)
        times.append([ends[point.step - 1] for point in report.evaluations])
        accuracies.append([100 * point.accuracy for point in report.evaluations])
        ax.plot(times[-1], accuracies[-1], color=colour, linewidth=0.6, alpha=0.35)
    ax.plot(np.mean(times, axis=0), np.mean(accuracies, axis=0), color=colour, linewidth=2, label=kind)
