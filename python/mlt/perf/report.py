"""A run's results as a table, as JSON (``SCHEMA``), and as a plot of the distribution of round times."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.table import Table

from mlt import __version__
from mlt._shared.counts import count_of
from mlt._shared.extras import how_to_install
from mlt._shared.output_files import write_figure, write_text
from mlt._shared.units import format_size
from mlt.perf.conductor import Measurement
from mlt.perf.problem import PerfError
from mlt.perf.session import Result
from mlt.perf.statistics import QUANTILES, Summary, cumulative, name_of, needed, significant, summarise
from mlt.perf.transports.tcp import congestion_control

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

# Incremented when a field changes its meaning or is removed.
SCHEMA = 1
_FLOOR = 1e-9


def goodput(measurement: Measurement) -> float:
    """Bits per second through the busiest port, of the median round; counts what arrived if that is not all."""
    if measurement.arrived:
        rates = [got / max(s, _FLOOR) for got, s in zip(measurement.arrived, measurement.seconds, strict=True)]
        return 8 * summarise(rates).median
    return 8 * measurement.case.port_bytes / max(summarise(measurement.seconds).median, _FLOOR)


def cpu_per_gigabyte(measurement: Measurement) -> float:
    """CPU seconds of all ranks' processes per 10^9 payload bytes that crossed the network."""
    carried = sum(measurement.arrived) or measurement.case.network_bytes * len(measurement.seconds)
    return measurement.cpu_seconds / carried * 1e9


def loss(measurement: Measurement) -> float | None:
    """Fraction of packets that the network lost; None if the transport does not know."""
    if measurement.arrived:
        return 1 - sum(measurement.arrived) / (measurement.case.bytes * len(measurement.arrived))
    return measurement.packets_lost / measurement.packets_sent if measurement.packets_sent else None


def repairs(measurement: Measurement) -> int | None:
    """Retransmitted packets: mlt's by its own counters, TCP's by the kernel's; None for the bare loop."""
    if measurement.arrived:
        return None
    return measurement.counters.get("segments_repaired", measurement.retransmitted)


def missing_fraction(measurement: Measurement) -> float:
    """Fraction of the payload that is missing within a loss bound."""
    case = measurement.case
    everything = case.bytes * (case.ranks - 1 if case.pattern in ("p2p", "incast") else case.ranks)
    return measurement.missing_bytes / (everything * len(measurement.seconds))


def label(measurement: Measurement) -> str:
    """Label of a row; states whether packets went through shared memory instead of the network."""
    shared = measurement.counters.get("shm_bytes_sent", 0) > 0
    return f"{measurement.label} shm" if shared else measurement.label


def _row(measurement: Measurement) -> dict[str, Any]:
    summary = summarise(measurement.seconds)
    return {
        "transport": measurement.transport,
        "label": measurement.label,
        "pattern": measurement.case.pattern,
        "bytes": measurement.case.bytes,
        "ranks": measurement.case.ranks,
        "loss_bound": measurement.case.loss_bound,
        "algorithm": measurement.case.algorithm,
        "rounds": summary.count,
        "goodput_bits_per_second": goodput(measurement),
        "achieved_bits_per_second": 8
        * (sum(measurement.arrived) or measurement.case.port_bytes * summary.count)
        / max(measurement.elapsed_seconds, _FLOOR),
        "seconds": {"mean": summary.mean, **{name_of(q): value for q, value in summary.quantiles.items()}},
        "loss_fraction": loss(measurement),
        "repairs": repairs(measurement),
        "missing_fraction": missing_fraction(measurement),
        "verified_missing_fraction": measurement.verified_missing,
        "cpu_seconds_per_gigabyte": cpu_per_gigabyte(measurement),
        "counters": {name: value for name, value in sorted(measurement.counters.items()) if value},
        "samples_seconds": measurement.seconds,
    }


def as_dict(result: Result) -> dict[str, Any]:
    """All results, samples included."""
    return {
        "schema": SCHEMA,
        "mlt": __version__,
        "when": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "machine": {
            "processors": os.cpu_count(),
            "kernel": platform.release(),
            "python": platform.python_version(),
            "tcp_congestion_control": congestion_control(),
        },
        "mode": result.mode,
        "hosts": [asdict(host) for host in result.hosts],
        "options": result.options.as_dict(),
        "seconds": result.seconds,
        "skipped": [asdict(one) for one in result.skipped],
        "results": [_row(measurement) for measurement in result.measurements],
    }


def as_json(result: Result) -> str:
    """The text of the JSON file."""
    return json.dumps(as_dict(result), indent=1) + "\n"


def write_json(result: Result, path: Path) -> None:
    """Raises PerfError if the file cannot be written."""
    try:
        write_text(path, as_json(result))
    except OSError as error:
        raise PerfError(f"{path}: {error.strerror}; choose another place with --json") from None


LEGEND = (
    "lost: packets that did not arrive; repairs: packets sent again; missing: payload absent at completion, within the "
    "loss bound; s/GB: CPU seconds of all ranks per 10^9 bytes over the network (docs/perf.md)"
)


def tables(result: Result) -> list[Table]:
    """One table per size; one row per transport, mlt first."""
    sizes = sorted({measurement.case.bytes for measurement in result.measurements})
    return [_table(result, size) for size in sizes]


def _table(result: Result, size: int) -> Table:
    rows = [measurement for measurement in result.measurements if measurement.case.bytes == size]
    case, rounds = rows[0].case, len(rows[0].seconds)
    unit, scale = _time_unit([summarise(row.seconds) for row in rows])
    rate = "" if result.options.rate is None else f", offered {result.options.rate / 1e9:g} Gbit/s"
    ranks = "" if case.pattern == "p2p" else f", {case.ranks} ranks"
    short = [f"{name_of(q)} needs {needed(q):,} rounds" for q in QUANTILES if rounds < needed(q)]
    table = Table(
        title=f"{case.pattern} of {format_size(size)}{ranks}, {count_of(rounds, 'round')}{rate}; times in {unit}",
        caption="; ".join(short) or None,
        # The table must fit into 80 columns.
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    table.add_column("", no_wrap=True)
    for name in ("Gbit/s", *map(name_of, QUANTILES), "lost", "repairs", "missing", "s/GB"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(label(row), *_cells(row, scale))
    return table


def _cells(row: Measurement, scale: float) -> list[str]:
    summary, lost, again = summarise(row.seconds), loss(row), repairs(row)
    return [
        significant(goodput(row) * 1e-9),
        *(summary.text(quantile, scale) for quantile in QUANTILES),
        "-" if lost is None else f"{lost:.2%}",
        "-" if again is None else f"{again:,}",
        f"{missing_fraction(row):.2%}" if row.case.loss_bound else "-",
        significant(cpu_per_gigabyte(row), 2),
    ]


def _time_unit(summaries: Sequence[Summary]) -> tuple[str, float]:
    return ("ms", 1e3) if max(summary.median for summary in summaries) >= 1e-3 else ("us", 1e6)


def plot_figure(result: Result) -> Figure:
    """The distribution of round times, one panel per size, with one legend below them."""
    from matplotlib.figure import Figure

    sizes = sorted({measurement.case.bytes for measurement in result.measurements})
    figure = Figure(figsize=(4.8 * len(sizes), 3.8), layout="constrained")
    panels = figure.subplots(1, len(sizes), squeeze=False)[0]
    names = list(dict.fromkeys(label(row) for row in result.measurements))
    curves: dict[str, Line2D] = {}
    for panel, size in zip(panels, sizes, strict=True):
        rows = [measurement for measurement in result.measurements if measurement.case.bytes == size]
        unit, scale = _time_unit([summarise(row.seconds) for row in rows])
        for row in rows:
            samples, fractions = cumulative(row.seconds)
            name = label(row)
            number = names.index(name)
            style = {"color": f"C{number}", "linestyle": ("-", "--", ":")[number // 10 % 3]}  # C10 is C0
            (curves[name],) = panel.step([one * scale for one in samples], fractions, where="post", label=name, **style)
        panel.set(xscale="log", xlabel=f"time of a round, {unit}", ylabel="fraction of rounds", ylim=(0, 1.01))
        panel.set_title(f"{rows[0].case.pattern}, {format_size(size)}, {rows[0].case.ranks} ranks", fontsize=10)
        panel.grid(alpha=0.3, which="both")
    figure.legend(
        handles=[curves[name] for name in names], loc="outside lower center", ncols=2 * len(sizes), fontsize=8
    )
    return figure


def write_plot(result: Result, path: Path) -> None:
    """Write the picture. Raises PerfError, also without matplotlib."""
    try:
        figure = plot_figure(result)
    except ImportError:
        raise PerfError(f"--plot needs matplotlib: {how_to_install('perf', 'matplotlib')}") from None
    try:
        write_figure(path, figure, dpi=110)
    except (OSError, ValueError) as error:
        raise PerfError(
            f"--plot {path}: {error.strerror if isinstance(error, OSError) else error}; choose another place"
        ) from None
