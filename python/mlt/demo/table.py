"""The final tables: the runs side by side, one column per kind of run; the test accuracy by seed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeAlias

from rich.table import Table

from mlt._shared.counts import count_of
from mlt.demo.report import DemoReport, RunReport, seconds_to

# label, figure of a run, format
Measure: TypeAlias = tuple[str, Callable[[RunReport], float | None], str]
MEASURES: Final[tuple[Measure, ...]] = (
    ("steps/s", lambda run: run.steps_per_second, "{:.2f}"),
    ("synchronisation p50, ms", lambda run: 1e3 * run.sync_p50, "{:.2f}"),
    ("synchronisation p99, ms", lambda run: 1e3 * run.sync_p99, "{:.2f}"),
    ("  exposed p50, ms", lambda run: 1e3 * run.exposed_p50, "{:.2f}"),
    ("  exposed p99, ms", lambda run: 1e3 * run.exposed_p99, "{:.2f}"),
    ("gradients missing, %", lambda run: 100 * run.gradient_loss, "{:.3f}"),
    ("packets dropped", lambda run: run.packets_dropped, "{:,.0f}"),
    ("segments missing", lambda run: run.segments_lost, "{:,.0f}"),
    ("segments sent again", lambda run: run.segments_repaired, "{:,.0f}"),
    ("cores busy elsewhere, %", lambda run: None if run.busy_elsewhere is None else 100 * run.busy_elsewhere, "{:.0f}"),
    ("megabytes sent", lambda run: None if run.bytes_sent is None else run.bytes_sent / 1e6, "{:,.1f}"),
)
# Share of the cores from which the table says that other programs had them: more than repetitions differ by.
BUSY_SHARE: Final = 0.1

# The test uses batch norm's running averages, the training each batch's own statistics.
_UNEVEN: Final = "it swings during training, because batch norm's averages lag behind the weights"


def comparison(report: DemoReport) -> Table:
    """One row per measure; the mean over several seeds. What only mlt counts is "-" over gloo."""
    groups = _by_name(report)
    seeds = f", mean of {report.settings.seeds} seeds" if report.settings.seeds > 1 else ""
    length = f"{count_of(report.settings.steps, 'step')}, {count_of(report.settings.workers, 'worker')}"
    table = Table(
        title=f"{report.data.name}: {length}{seeds}",
        caption=f"test accuracy: of all {report.data.test_images:,} test images; {_UNEVEN}{_network(report)}"
        f"{_busy(report)}",
    )
    _add_columns(table, groups)
    accuracy: Measure = ("test accuracy, %", lambda run: 100 * run.test_accuracy, "{:.2f}")
    for label, measure, form in (accuracy, *_time_to_accuracy(report), *MEASURES):
        table.add_row(label, *(_mean([measure(run) for run in group], form) for group in groups))
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


def _time_to_accuracy(report: DemoReport) -> Iterator[Measure]:
    """Measures of a testbed only: loopback has no rate, and its runs differ by what else the host does."""
    target = report.common_accuracy
    if target is not None and report.settings.testbed is not None:
        yield f"seconds to {100 * target:.0f} % accuracy", lambda run: seconds_to(run, target), "{:.1f}"


def place(report: DemoReport) -> str:
    """The processes of a run and their network, in short."""
    workers, bed = report.settings.workers, report.settings.testbed
    if bed is not None:
        return f"{count_of(workers, 'host')}, links of {bed.rate}"
    services = count_of(report.settings.services, "summation service")
    return f"{count_of(workers, 'worker')} and {services} on loopback"


def _network(report: DemoReport) -> str:
    bed = report.settings.testbed
    if bed is None:
        where = place(report)
        return f"\n{where}; with loss, each process drops {100 * report.settings.loss:.3g} % of its packets itself"
    return (
        f"\n{count_of(report.settings.workers, 'host')} of a testbed, links of {bed.rate}; with loss, every host's "
        f"link loses {100 * report.settings.loss:.3g} %, {bed.gray_link} {100 * bed.gray_loss:.3g} %; gloo's TCP uses "
        f"{bed.tcp_control}"
    )


def _busy(report: DemoReport) -> str:
    busy = max((run.busy_elsewhere or 0.0 for run in report.runs), default=0.0)
    if busy < BUSY_SHARE:
        return ""
    return (
        f"\nother programs had up to {100 * busy:.0f} % of the cores during a run: times may differ for that reason; "
        "repeat it on a quiet machine"
    )


def _mean(values: list[float | None], form: str) -> str:
    known = [value for value in values if value is not None]
    return form.format(sum(known) / len(known)) if known else "-"


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
