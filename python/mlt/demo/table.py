"""The final tables: the runs side by side, one column per kind of run; the test accuracy by seed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from rich.table import Table

from mlt.demo.report import DemoReport, RunReport

# label, figure of a run, format
MEASURES: Final[tuple[tuple[str, Callable[[RunReport], float], str], ...]] = (
    ("test accuracy, %", lambda run: 100 * run.test_accuracy, "{:.2f}"),
    ("steps/s", lambda run: run.steps_per_second, "{:.2f}"),
    ("synchronisation p50, ms", lambda run: 1e3 * run.sync_p50, "{:.2f}"),
    ("synchronisation p99, ms", lambda run: 1e3 * run.sync_p99, "{:.2f}"),
    ("  exposed p50, ms", lambda run: 1e3 * run.exposed_p50, "{:.2f}"),
    ("  exposed p99, ms", lambda run: 1e3 * run.exposed_p99, "{:.2f}"),
    ("gradients given up, %", lambda run: 100 * run.gradient_loss, "{:.3f}"),
    ("packets lost on purpose", lambda run: run.packets_dropped, "{:,.0f}"),
    ("segments lost for good", lambda run: run.segments_lost, "{:,.0f}"),
    ("segments repaired", lambda run: run.segments_repaired, "{:,.0f}"),
    ("megabytes sent", lambda run: run.bytes_sent / 1e6, "{:,.1f}"),
)


def comparison(report: DemoReport) -> Table:
    """One row per measure; the mean over several seeds."""
    groups = _by_name(report)
    seeds = f", mean of {report.settings.seeds} seeds" if report.settings.seeds > 1 else ""
    table = Table(
        title=f"{report.data.name}: {report.settings.steps} steps, {report.settings.workers} workers{seeds}",
        caption=f"test accuracy: of all {report.data.test_images:,} test images",
    )
    _add_columns(table, groups)
    for label, measure, form in MEASURES:
        means = (sum(measure(run) for run in group) / len(group) for group in groups)
        table.add_row(label, *(form.format(mean) for mean in means))
    table.add_row("replicas bit-identical", *(_agreement(run.replicas_identical for run in group) for group in groups))
    table.add_row("weights as without loss", *(_agreement(report.equals_no_loss[group[0].name]) for group in groups))
    return table


def accuracy_by_seed(report: DemoReport) -> Table:
    """Variation between seeds: test accuracy of each seed, then mean and sample standard deviation."""
    groups = _by_name(report)
    table = Table(title="test accuracy by seed, %")
    _add_columns(table, groups)
    for runs in zip(*groups, strict=True):
        table.add_row(f"seed {runs[0].seed}", *(f"{100 * run.test_accuracy:.2f}" for run in runs))
    table.add_section()
    table.add_row("mean", *(f"{100 * summary.mean:.2f}" for summary in report.accuracy))
    deviations = [summary.deviation for summary in report.accuracy]
    table.add_row("standard deviation", *("-" if one is None else f"{100 * one:.2f}" for one in deviations))
    return table


def _by_name(report: DemoReport) -> list[list[RunReport]]:
    return [[run for run in report.runs if run.name == summary.name] for summary in report.accuracy]


def _add_columns(table: Table, groups: list[list[RunReport]]) -> None:
    table.add_column("", no_wrap=True)
    for group in groups:
        table.add_column(group[0].title, justify="right")


def _agreement(answers: Iterable[bool]) -> str:
    listed = list(answers)
    if len(set(listed)) == 1:
        return "yes" if listed[0] else "no"
    return f"{listed.count(True)} of {len(listed)}"
