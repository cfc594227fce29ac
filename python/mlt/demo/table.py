"""The comparison table: one column per kind of run, one row per measure; several seeds as mean and spread."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from rich.table import Table

from mlt.demo.report import DemoReport, RunReport


def comparison(report: DemoReport) -> Table:
    """The table printed at the end."""
    names = list(dict.fromkeys(run.name for run in report.runs))
    groups = [[run for run in report.runs if run.name == name] for name in names]
    table = Table(title=f"{report.data.name}: {report.settings.steps} steps, {report.settings.workers} workers")
    table.add_column("", no_wrap=True)
    for group in groups:
        table.add_column(group[0].title, justify="right")
    for label, measure, form in (
        ("test accuracy", lambda run: 100 * run.test_accuracy, "{:.2f} %"),
        ("steps/s", lambda run: run.steps_per_second, "{:.2f}"),
        ("synchronisation p50", lambda run: 1e3 * run.sync_p50, "{:.2f} ms"),
        ("synchronisation p99", lambda run: 1e3 * run.sync_p99, "{:.2f} ms"),
        ("  exposed p50", lambda run: 1e3 * run.exposed_p50, "{:.2f} ms"),
        ("  exposed p99", lambda run: 1e3 * run.exposed_p99, "{:.2f} ms"),
        ("gradients given up", lambda run: 100 * run.gradient_loss, "{:.3f} %"),
        ("packets lost on purpose", lambda run: run.packets_dropped, "{:,.0f}"),
        ("segments lost for good", lambda run: run.segments_lost, "{:,.0f}"),
        ("segments repaired", lambda run: run.segments_repaired, "{:,.0f}"),
        ("bytes sent", lambda run: run.bytes_sent / 1e6, "{:,.1f} MB"),
    ):
        table.add_row(label, *(_cell(group, measure, form) for group in groups))
    table.add_row("replicas bit-identical", *(_agreement(run.replicas_identical for run in group) for group in groups))
    table.add_row("weights as without loss", *(_agreement(report.equals_no_loss[name]) for name in names))
    return table


def _cell(runs: Sequence[RunReport], measure: Callable[[RunReport], float], form: str) -> str:
    values = [measure(run) for run in runs]
    mean = form.format(sum(values) / len(values))
    if len(values) == 1:
        return mean
    number = form.split("}")[0] + "}"
    return f"{mean} ({number.format(min(values))} .. {number.format(max(values))})"


def _agreement(answers: Iterable[bool]) -> str:
    listed = list(answers)
    if len(set(listed)) == 1:
        return "yes" if listed[0] else "no"
    return f"{listed.count(True)} of {len(listed)}"
