"""ALEPH's figures 13 to 16 again: ``python -m studies.aleph.figures --out docs/results/aleph``.

Writes ``figures.json`` (every number with its 95 % confidence half-width), one image per figure, and prints the
paper's printed values beside ours. Under a minute with the default 40 seeds.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from studies.aleph.simulation import FABRICS, FAT_TREE, LEAF_SPINE, PAPER_GB, Fabric, mean_outcomes

DEVIATIONS = (0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3)
WORKER_COUNTS = (50, 100, 150, 200, 250)
MARKERS = {
    "ALEPH": "o-",
    "ALEPH in racks": "D-",
    "ALEPH at the floor": "x-",
    "rate search": "v:",
    "BytePS": "s--",
    "Horovod": "^-.",
}
SYSTEMS = tuple(MARKERS)

Rows = dict[str, dict[str, dict[str, float]]]


@dataclass(frozen=True, kw_only=True)
class Printed:
    """One value the paper states, and where ours is found."""

    figure: str
    fabric: str
    at: float
    system: str
    metric: str
    scale: float
    value: float
    what: str


_FIGURE_14 = {"ALEPH": 51.7, "ALEPH in racks": 51.7, "ALEPH at the floor": 51.7, "BytePS": 85.3, "Horovod": 64.8}
_STATED: tuple[tuple[str, str, float, str, float, str, dict[str, float]], ...] = (
    ("13", "fat-tree", 0.3, "worker_usage", 1e9, "workers, Gbit/s", {"ALEPH": 188, "BytePS": 100, "Horovod": 100}),
    ("13", "fat-tree", 0.3, "server_usage", 1e9, "servers, Gbit/s", {"ALEPH": 12, "BytePS": 100}),
    ("14", "fat-tree", 150, "overhead", PAPER_GB, "overhead, GB", _FIGURE_14),
    ("16", "leaf-spine", 0.3, "hops", 1.0, "gradient hops", {"ALEPH": 1.1, "BytePS": 3, "Horovod": 9}),
)
PRINTED = tuple(
    Printed(figure=figure, fabric=fabric, at=at, system=system, metric=metric, scale=scale, value=value, what=what)
    for figure, fabric, at, metric, scale, what, values in _STATED
    for system, value in values.items()
)


def compute(*, seeds: Sequence[int]) -> dict[str, dict[str, Rows]]:
    """Figure -> fabric -> x value (as text) -> system -> metrics."""

    def sweep(
        fabrics: Sequence[Fabric], values: Sequence[float], run: Callable[[Fabric, float], Any]
    ) -> dict[str, Rows]:
        return {fabric.name: {f"{value:g}": run(fabric, value) for value in values} for fabric in fabrics}

    def by_deviation(workers: int) -> Callable[[Fabric, float], Any]:
        return lambda fabric, value: mean_outcomes(fabric, workers=workers, deviation=value, seeds=seeds)

    def by_workers(fabric: Fabric, value: float) -> Any:
        return mean_outcomes(fabric, workers=int(value), deviation=0.1, seeds=seeds)

    by_count = sweep(FABRICS, WORKER_COUNTS, by_workers)
    return {
        "13": sweep((FAT_TREE,), DEVIATIONS, by_deviation(100)),
        "14": by_count,
        "15": by_count,
        "16": sweep((LEAF_SPINE,), DEVIATIONS, by_deviation(10)),
    }


def compare(results: dict[str, dict[str, Rows]]) -> list[dict[str, object]]:
    """The paper's printed values beside ours."""
    table: list[dict[str, object]] = []
    for item in PRINTED:
        row = results[item.figure][item.fabric][f"{item.at:g}"][item.system]
        table.append(
            {
                "figure": item.figure,
                "system": item.system,
                "what": item.what,
                "paper": item.value,
                "ours": round(row[item.metric] / item.scale, 2),
                "ci95": round(row[f"{item.metric}_ci"] / item.scale, 2),
            }
        )
    return table


def _draw(axes: Any, rows: Rows, metric: str, scale: float) -> None:
    positions = [float(x) for x in rows]
    for system in SYSTEMS:
        heights = [rows[x][system][metric] / scale for x in rows]
        errors = [rows[x][system][f"{metric}_ci"] / scale for x in rows]
        axes.errorbar(positions, heights, yerr=errors, fmt=MARKERS[system], label=system, capsize=2, markersize=4)
    axes.grid(alpha=0.3)


def draw(results: dict[str, dict[str, Rows]], folder: Path) -> None:
    """One image per figure, laid out as in the paper."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    deviation, workers = "standard deviation of bandwidth", "workers"
    panels: dict[str, list[tuple[str, str, float, str, str]]] = {
        "13": [
            ("fat-tree", "worker_usage", 1e9, deviation, "all workers, Gbit/s"),
            ("fat-tree", "server_usage", 1e9, deviation, "all parameter servers, Gbit/s"),
        ],
        "14": [(fabric.name, "overhead", PAPER_GB, workers, f"{fabric.name}: overhead, GB") for fabric in FABRICS],
        "15": [(fabric.name, "hops", 1.0, workers, f"{fabric.name}: gradient hops") for fabric in FABRICS],
        "16": [("leaf-spine", "hops", 1.0, deviation, "gradient hops (10 workers)")],
    }
    for figure, parts in panels.items():
        canvas, axes = pyplot.subplots(1, len(parts), figsize=(4.2 * len(parts), 3.2), squeeze=False)
        for axis, (fabric, metric, scale, x_label, y_label) in zip(axes[0], parts, strict=True):
            _draw(axis, results[figure][fabric], metric, scale)
            axis.set_xlabel(x_label)
            axis.set_ylabel(y_label)
            if figure == "15":
                axis.set_yscale("log")
        axes[0][0].legend(fontsize=8)
        canvas.tight_layout()
        canvas.savefig(folder / f"figure{figure}.png", dpi=100, metadata={"Software": None})
        pyplot.close(canvas)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--out", type=Path, required=True, help="folder for figures.json and the images (default: %(default)s)"
    )
    parser.add_argument("--seeds", type=int, default=40, help="number of random instances (default: %(default)s)")
    options = parser.parse_args(arguments)
    results = compute(seeds=range(options.seeds))
    table = compare(results)
    options.out.mkdir(parents=True, exist_ok=True)
    document = {"seeds": options.seeds, "paper_values": table, "figures": _rounded(results)}
    (options.out / "figures.json").write_text(json.dumps(document, indent=1) + "\n")
    draw(results, options.out)
    for row in table:
        label = f"figure {row['figure']:>2}  {row['system']:<14} {row['what']:<22}"
        print(f"{label} paper {row['paper']:>6}  ours {row['ours']} (+- {row['ci95']})")


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return float(f"{value:.6g}") if isinstance(value, float) else value


if __name__ == "__main__":
    main()
