"""Pictures of the experiments (matplotlib, no display needed)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from studies.psnet.figures import Series
from studies.psnet.testbed import OVERSUBSCRIPTIONS, PRINTED, Row

_DPI = 80
_MARKERS = "osv^Dx*"


def draw_series(path: Path, title: str, series: Sequence[Series], *, log: bool = False) -> None:
    """Communication time over the worker's bandwidth."""
    figure, axes = plt.subplots(figsize=(6.4, 4.2))
    for line, marker in zip(series, _MARKERS, strict=False):
        axes.plot(line.x, line.seconds, marker=marker, label=line.label, markersize=5, alpha=0.8)
    axes.set_xlabel("bandwidth of a worker, Gbit/s")
    axes.set_ylabel("T_push + T_pull, s")
    axes.set_title(title, fontsize=10)
    if log:
        axes.set_yscale("log")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    _save(path, figure)


def draw_figure_13(path: Path, rows: Sequence[Row]) -> None:
    """BCT without overlap (bar) down to full overlap (whisker) at the highest and lowest bandwidth, per model."""
    rates = sorted({row.mbits for row in rows})
    figure, axes = plt.subplots(1, 2, figsize=(9, 4))
    for panel, model in zip(axes, PRINTED, strict=True):
        of_model = [row for row in rows if row.model == model]
        names = ["PSNet", *(f"fat-tree r={r}" for r in OVERSUBSCRIPTIONS)]
        for n, name in enumerate(names):
            bounds = []
            for rate in rates:
                at_rate = [row for row in of_model if row.mbits == rate]
                bounds.append(at_rate[0].psnet if n == 0 else at_rate[n - 1].fat_tree)
            panel.plot(rates, [b.most for b in bounds], marker=_MARKERS[n], label=name)
            panel.fill_between(rates, [b.least for b in bounds], [b.most for b in bounds], alpha=0.08)
        panel.set_yscale("log")
        panel.set_xlabel("bandwidth of a worker, Mbit/s")
        panel.set_title(f"{model}: line no overlap, band down to full overlap", fontsize=9)
        panel.grid(alpha=0.3)
        panel.legend(fontsize=8)
    axes[0].set_ylabel("BCT, s")
    _save(path, figure)


def _save(path: Path, figure: Figure) -> None:
    figure.tight_layout()
    figure.savefig(path, dpi=_DPI, metadata={"Software": ""})
    plt.close(figure)
