"""The report's figure: accuracy and cost of all runs side by side."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from mlt.demo.report import DemoReport, RunReport

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PLOT_FILE: Final = "report.png"
# The curves without loss and with the reliable run coincide: the first is wide, so that both are visible.
STYLES: Final[dict[str, dict[str, Any]]] = {
    "no-loss": {"color": "#4477aa", "linewidth": 3.0, "alpha": 0.5},
    "bounded": {"color": "#ee6677", "linewidth": 1.0},
    "reliable": {"color": "#228833", "linewidth": 1.0, "linestyle": "--"},
}
SMOOTHING_STEPS: Final = 15


def write_png(report: DemoReport, folder: Path) -> Path:
    """Draw the figure into ``folder`` and return the file's path."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, 2, figsize=(11, 7.5), layout="constrained")
    labelled: set[str] = set()
    for run in report.runs:
        label = None if run.name in labelled else run.title
        labelled.add(run.name)
        _training_loss(axes[0, 0], run, label)
        _test_accuracy(axes[0, 1], run, label)
        _sync_times(axes[1, 0], run, label)
        _gradient_loss(axes[1, 1], run, label)
    axes[0, 0].set(title="Training loss", xlabel="step", ylabel="cross-entropy", yscale="log")
    axes[0, 1].set(title="Test accuracy", xlabel="step", ylabel="share of test images classified right")
    axes[1, 0].set(
        title="Gradient synchronisation time", xlabel="milliseconds", ylabel="share of steps within", xscale="log"
    )
    axes[1, 1].set(title="Gradients given up", xlabel="step", ylabel="% of the step's gradient bytes")
    for ax in axes.flat:
        ax.grid(visible=True, alpha=0.3)
        ax.legend(fontsize=8)
    seeds = f"{report.settings.seeds} seeds" if report.settings.seeds > 1 else f"seed {report.settings.seed}"
    figure.suptitle(
        f"{report.data.name}, {report.settings.workers} workers, {100 * report.settings.loss:.3g} % packet loss, "
        f"loss bound {100 * report.settings.bound:.3g} %, {seeds}"
    )
    path = folder / PLOT_FILE
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    return path


def _mean_per_step(run: RunReport, values: list[float]) -> npt.NDArray[np.float64]:
    """Mean over the workers of each step, in step order."""
    sums: dict[int, list[float]] = {}
    for step, value in zip(run.steps, values, strict=True):
        sums.setdefault(step.step, []).append(value)
    return np.array([np.mean(sums[step]) for step in sorted(sums)])


def _training_loss(ax: Axes, run: RunReport, label: str | None) -> None:
    losses = _mean_per_step(run, [step.loss for step in run.steps])
    width = min(SMOOTHING_STEPS, len(losses))
    smooth = np.convolve(losses, np.ones(width) / width, mode="valid")
    ax.plot(np.arange(len(smooth)) + width // 2, smooth, label=label, **STYLES[run.name])


def _test_accuracy(ax: Axes, run: RunReport, label: str | None) -> None:
    steps = [point.step for point in run.evaluations]
    ax.plot(
        steps, [point.accuracy for point in run.evaluations], label=label, **STYLES[run.name], marker="o", markersize=3
    )


def _sync_times(ax: Axes, run: RunReport, label: str | None) -> None:
    milliseconds = np.sort([1e3 * step.sync_seconds for step in run.steps if step.step > 0])
    ax.plot(milliseconds, np.linspace(0, 1, len(milliseconds)), label=label, **STYLES[run.name])


def _gradient_loss(ax: Axes, run: RunReport, label: str | None) -> None:
    percent = _mean_per_step(run, [100 * step.missing_bytes / step.bytes for step in run.steps])
    ax.plot(percent, label=label, **STYLES[run.name])
