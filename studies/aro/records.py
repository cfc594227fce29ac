"""Code shared by the sweeps: means with confidence intervals, results on disk, one style of figure."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from importlib import import_module
from math import sqrt
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

Row = dict[str, Any]


def summarise(values: Sequence[float]) -> dict[str, float]:
    """Mean with the half-width of its 95 % confidence interval (normal), median, extremes and count."""
    half = 1.96 * stdev(values) / sqrt(len(values)) if len(values) > 1 else 0.0
    return {
        "mean": round(mean(values), 4),
        "ci95": round(half, 4),
        "median": round(median(values), 4),
        "min": round(min(values), 4),
        "max": round(max(values), 4),
        "count": len(values),
    }


def write_json(path: Path, data: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


def write_csv(path: Path, rows: Sequence[Row]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        for row in rows:
            writer.writerow({key: round(v, 4) if isinstance(v, float) else v for key, v in row.items()})


def lines_figure(
    path: Path, series: Mapping[str, Sequence[tuple[float, float, float]]], *, x: str, y: str, title: str
) -> None:
    """One line per series of (x, mean, half-width of its interval)."""
    figure, axes = _axes(title, x, y)
    for name, points in series.items():
        xs, ys, errors = zip(*points, strict=True)
        axes.errorbar(xs, ys, yerr=errors, marker="o", capsize=2, label=name)
    axes.set_ylim(bottom=0)
    axes.legend()
    _save(figure, path)


def violins_figure(path: Path, series: Mapping[str, Sequence[float]], *, y: str, title: str) -> None:
    """Distributions side by side with their means, as the paper's figure 7a."""
    figure, axes = _axes(title, "", y)
    axes.violinplot(list(series.values()), showmeans=True)
    axes.set_xticks(range(1, len(series) + 1), list(series))
    axes.set_ylim(bottom=0)
    _save(figure, path)


def _axes(title: str, x: str, y: str) -> tuple[Any, Any]:
    matplotlib: Any = import_module("matplotlib")
    matplotlib.use("Agg")
    pyplot: Any = import_module("matplotlib.pyplot")
    figure, axes = pyplot.subplots(figsize=(6, 3.6), layout="constrained")
    axes.set(title=title, xlabel=x, ylabel=y)
    axes.grid(alpha=0.3)
    return figure, axes


def _save(figure: Any, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110, metadata={"Software": None})
    import_module("matplotlib.pyplot").close(figure)
