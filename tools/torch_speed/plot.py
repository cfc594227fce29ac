"""The figure of torch_speed: steps per second by loss, a panel for each model and rate.

After figure 15 of MLT (NSDI 2024).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = ("#777777", "#4477aa", "#ee6677", "#228833")


def draw(rows: Sequence[tuple[str, str, Mapping[str, float]]]) -> Figure:
    """``rows``: panel, loss, and steps per second by kind."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    panels = list(dict.fromkeys(panel for panel, _, _ in rows))
    figure, axes = pyplot.subplots(
        1, len(panels), figsize=(3 * len(panels) + 1, 3.2), layout="constrained", squeeze=False
    )
    for ax, panel in zip(axes[0], panels, strict=True):
        bars = [(loss, speeds) for name, loss, speeds in rows if name == panel]
        kinds = list(bars[0][1])
        width = 0.8 / len(kinds)
        for number, kind in enumerate(kinds):
            at = [place + (number - (len(kinds) - 1) / 2) * width for place in range(len(bars))]
            ax.bar(at, [speeds[kind] for _, speeds in bars], width, label=kind, color=COLOURS[number])
        ax.set_xticks(range(len(bars)), [loss for loss, _ in bars])
        ax.set(title=panel, xlabel="packet loss")
        ax.grid(visible=True, axis="y", alpha=0.3)
    axes[0, 0].set(ylabel="steps per second")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=8)
    return figure
