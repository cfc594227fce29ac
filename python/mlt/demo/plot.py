"""The report's figure: accuracy and cost of all runs side by side."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from mlt._shared.output_files import write_figure
from mlt.demo.report import DemoReport, RunReport, step_ends
from mlt.demo.table import place

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

PLOT_FILE: Final = "report.png"
# A run's colour and width, a seed's dashes. The curves without loss and of the reliable run coincide, so the first
# is wide.
STYLES: Final[dict[str, dict[str, Any]]] = {
    "gloo-no-loss": {"color": "#777777", "linewidth": 3.0, "alpha": 0.4},
    "gloo-lossy": {"color": "#222222", "linewidth": 1.4},
    "no-loss": {"color": "#4477aa", "linewidth": 3.0, "alpha": 0.4},
    "bounded": {"color": "#ee6677", "linewidth": 1.1},
    "reliable": {"color": "#228833", "linewidth": 1.1},
}
SMOOTHING_STEPS: Final = 15


def dashes(number: int) -> Any:
    """The line of the seed with this number, unlike those of all others: a long dash and more and more points."""
    lines: list[Any] = ["-", (0, (6, 2)), (0, (2, 1.5)), (0, (1, 1))]
    return lines[number] if number < len(lines) else (0, (6, 1.5, *(1, 1.5) * (number - len(lines) + 1)))


def write_png(report: DemoReport, folder: Path) -> Path:
    """Draw the figure into ``folder`` and return the file's path."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure = draw(report)
    path = folder / PLOT_FILE
    write_figure(path, figure, dpi=110)
    pyplot.close(figure)
    return path


def draw(report: DemoReport) -> Figure:
    """The figure: four plots, with one legend below them, where no curve is."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, 2, figsize=(11, 7.5), layout="constrained")
    seeds = list(dict.fromkeys(run.seed for run in report.runs))
    for run in report.runs:
        style = {**STYLES[run.name], "linestyle": dashes(seeds.index(run.seed))}
        # By the time that each step took, where a network gives it meaning.
        at = (
            np.array(step_ends(run)) if report.settings.testbed is not None else np.arange(1.0, len(step_ends(run)) + 1)
        )
        _training_loss(axes[0, 0], run, at, style)
        _test_accuracy(axes[0, 1], run, at, style)
        _sync_times(axes[1, 0], run, style)
        _gradient_loss(axes[1, 1], run, style)
    along = "step" if report.settings.testbed is None else "seconds of training"
    axes[0, 0].set(title="Training loss", xlabel=along, ylabel="cross-entropy", yscale="log")
    axes[0, 1].set(
        title="Test accuracy (batch norm lags behind)",
        xlabel=along,
        ylabel="share of test images classified right",
    )
    axes[1, 0].set(
        title="Gradient synchronisation time", xlabel="milliseconds", ylabel="share of steps within", xscale="log"
    )
    axes[1, 1].set(title="Gradients missing", xlabel="step", ylabel="% of the step's gradient bytes")
    for ax in axes.flat:
        ax.grid(visible=True, alpha=0.3)
    _plain_ticks(axes[0, 0].yaxis)
    _plain_ticks(axes[1, 0].xaxis)
    _legend(figure, report, seeds)
    title = f"{report.settings.seeds} seeds" if report.settings.seeds > 1 else f"seed {report.settings.seed}"
    bed = report.settings.testbed
    more = "" if bed is None else f" ({bed.gray_link} {100 * bed.gray_loss:.3g} %)"
    figure.suptitle(
        f"{report.data.name}, {place(report)}, {100 * report.settings.loss:.3g} % packet loss{more}, "
        f"loss bound {100 * report.settings.bound:.3g} %, {title}"
    )
    return figure


def _legend(figure: Figure, report: DemoReport, seeds: list[int]) -> None:
    """Runs by colour, seeds by dashes."""
    from matplotlib.lines import Line2D

    titles = {run.name: run.title for run in report.runs}
    lines = [Line2D([], [], label=title, **STYLES[name]) for name, title in titles.items()]
    if len(seeds) > 1:
        lines += [
            Line2D([], [], color="#555555", linestyle=dashes(number), label=f"seed {seed}")
            for number, seed in enumerate(seeds)
        ]
    figure.legend(handles=lines, loc="outside lower center", ncols=len(lines), fontsize=8)


def _plain_ticks(axis: Axis) -> None:
    """A logarithmic axis with 1, 2 and 5 of each decade as plain numbers: the default labels collide."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def _mean_per_step(run: RunReport, values: list[float]) -> npt.NDArray[np.float64]:
    """Mean over the workers of each step, in step order."""
    sums: dict[int, list[float]] = {}
    for step, value in zip(run.steps, values, strict=True):
        sums.setdefault(step.step, []).append(value)
    return np.array([np.mean(sums[step]) for step in sorted(sums)])


def _training_loss(ax: Axes, run: RunReport, at: npt.NDArray[np.float64], style: dict[str, Any]) -> None:
    losses = _mean_per_step(run, [step.loss for step in run.steps])
    width = min(SMOOTHING_STEPS, len(losses))
    smooth = np.convolve(losses, np.ones(width) / width, mode="valid")
    ax.plot(at[width // 2 : width // 2 + len(smooth)], smooth, **style)


def _test_accuracy(ax: Axes, run: RunReport, at: npt.NDArray[np.float64], style: dict[str, Any]) -> None:
    ends = at[[point.step - 1 for point in run.evaluations]]
    ax.plot(ends, [point.accuracy for point in run.evaluations], **style, marker="o", markersize=3)


def _sync_times(ax: Axes, run: RunReport, style: dict[str, Any]) -> None:
    milliseconds = np.sort([1e3 * step.sync_seconds for step in run.steps if step.step > 0])
    ax.plot(milliseconds, np.linspace(0, 1, len(milliseconds)), **style)


def _gradient_loss(ax: Axes, run: RunReport, style: dict[str, Any]) -> None:
    percent = _mean_per_step(run, [100 * step.missing_bytes / step.bytes for step in run.steps])
    ax.plot(percent, **style)
