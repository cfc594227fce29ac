"""The demo's display: progress, comparison table and plot, from made-up runs."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from checks import assert_names, until
from rich.console import Console

from mlt.demo import plot, report, table
from mlt.demo.data import Images
from mlt.demo.display import PLAIN_LINES_PER_RUN, LiveDisplay, PlainDisplay, Progress, make_display
from mlt.demo.events import Evaluated, Event, Finished, Ready, StepDone
from mlt.demo.runner import RunRecord
from mlt.demo.settings import EVALUATIONS, DemoSettings, Network, RunSpec, run_specs

STEPS = 20
WORKERS = 2
NAMES = {0: "worker-0", 1: "worker-1", 2: "service-0"}


def settings(tmp_path: Path, *, seeds: int = 1, network: Network = "loopback") -> DemoSettings:
    return DemoSettings(
        network=network,
        steps=STEPS,
        loss=0.01,
        bound=0.1,
        seed=1,
        seeds=seeds,
        workers=WORKERS,
        data="auto",
        output=tmp_path,
        live=True,
    )


def events(run: RunSpec) -> list[Event]:
    """Reports that the processes of a run could have made; the sums are easy to check."""
    told: list[Event] = [Ready(rank=rank, parameters=100) for rank in range(WORKERS)]
    for step in range(STEPS):
        told += [
            StepDone(
                rank=rank,
                step=step,
                loss=2.0 / (1 + step),
                accuracy=step / STEPS,
                seconds=0.1,
                sync_seconds=0.001 * (1 + step),
                exposed_seconds=0.0005 * (1 + step),
                buckets=2,
                bytes=400,
                missing_bytes=40 if run.name == "bounded" else 0,
                repairs=1,
            )
            for rank in range(WORKERS)
        ]
    counters = {"fault_dropped": 5, "segments_lost_within_bound": 2, "segments_repaired": 3, "udp_bytes_sent": 1000}
    digest = ("other" if run.name == "bounded" else "same") + run.backend + str(run.seed)
    told += [Evaluated(rank=rank, step=STEPS, images=10, accuracy=0.8 + 0.01 * run.seed) for rank in range(WORKERS)]
    told += [
        Finished(rank=rank, counters=counters, parameters_sha256=digest, test_accuracy=0.8 + 0.01 * run.seed)
        for rank in range(WORKERS)
    ]
    return [*told, Finished(rank=WORKERS, counters=counters)]


def record_of(run: RunSpec, packets_lost: int | None = None) -> RunRecord:
    record = RunRecord(run, seconds=3.0, packets_lost=packets_lost)
    for event in events(run):
        record.add(event, NAMES)
    return record


def report_of(tmp_path: Path, *, seeds: int, network: Network = "loopback") -> report.DemoReport:
    chosen = settings(tmp_path, seeds=seeds, network=network)
    packets_lost = 7 if network == "testbed" else None
    none = np.zeros((1, 28, 28), np.uint8)
    label = np.zeros(1, np.int64)
    images = Images("Images", "a package", "MIT", none, label, none, label)
    return report.build(chosen, images, [record_of(run, packets_lost) for run in run_specs(chosen)], seconds=9.0)


def shown(console_width: int, thing: object) -> str:
    console = Console(file=io.StringIO(), width=console_width)
    console.print(thing)
    output = console.file
    assert isinstance(output, io.StringIO)
    return output.getvalue()


def test_report__sums_and_quantiles(tmp_path: Path) -> None:
    told = report_of(tmp_path, seeds=1)
    no_loss, _, bounded = told.runs
    assert no_loss.packets_dropped == 0
    assert bounded.packets_dropped == 3 * 5
    assert bounded.segments_lost == 3 * 2
    assert bounded.bytes_sent == 3 * 1000
    assert bounded.gradient_bytes == STEPS * WORKERS * 400
    assert bounded.gradient_loss == pytest.approx(0.1)
    assert no_loss.steps_per_second == pytest.approx(10)
    # Steps 1 to 19 count (2 to 20 ms); the first one is left out.
    assert no_loss.sync_p50 == pytest.approx(0.011)
    assert len(no_loss.evaluations) == 1
    assert told.equals_no_loss == {"no-loss": [True], "reliable": [True], "bounded": [False]}


def test_report__time_to_an_accuracy_that_all_runs_reached(tmp_path: Path) -> None:
    told = report_of(tmp_path, seeds=1)
    assert told.common_accuracy == pytest.approx(0.80)
    assert report.seconds_to(told.runs[0], 0.80) == pytest.approx(0.1 * STEPS)
    with pytest.raises(ValueError, match="no loss"):
        report.seconds_to(told.runs[0], 0.9)


def test_report__of_a_testbed(tmp_path: Path) -> None:
    told = report_of(tmp_path, seeds=1, network="testbed")
    gloo, lossy, no_loss, *_ = told.runs
    assert (gloo.packets_dropped, lossy.packets_dropped, no_loss.packets_dropped) == (0, 7, 0)
    assert (gloo.bytes_sent, gloo.segments_lost, no_loss.bytes_sent) == (None, None, 3 * 1000)
    assert told.equals_no_loss["gloo-lossy"] == [True]
    text = shown(120, table.comparison(told))
    for words in ("gloo, 1 %", "seconds to 80 % accuracy", "2.0", "cubic", "200 Mbit/s", " - ", "batch norm"):
        assert words in text, words
    assert plot.write_png(told, tmp_path).stat().st_size > 10_000


def test_report__spread_over_seeds(tmp_path: Path) -> None:
    accuracy = report_of(tmp_path, seeds=3).accuracy
    assert [summary.name for summary in accuracy] == ["no-loss", "reliable", "bounded"]
    for summary in accuracy:
        assert (summary.minimum, summary.maximum) == pytest.approx((0.81, 0.83))
        assert summary.mean == pytest.approx(0.82)
        assert summary.deviation == pytest.approx(0.01)


def test_report__json_round_trip(tmp_path: Path) -> None:
    told = report_of(tmp_path, seeds=1)
    path = report.write_json(told, tmp_path)
    assert report.DemoReport.model_validate_json(path.read_text()) == told


def test_comparison__one_column_per_kind_of_run(tmp_path: Path) -> None:
    text = shown(100, table.comparison(report_of(tmp_path, seeds=1)))
    assert "1 % loss, bound 10 %" in text
    for figures in (["81.00"] * 3, ["0.000", "0.000", "10.000"], ["yes", "yes", "no"]):
        assert figures in [line.replace("│", " ").split()[-3:] for line in text.splitlines()]


def test_comparison__says_when_the_machine_was_busy(tmp_path: Path) -> None:
    quiet = report_of(tmp_path, seeds=1)
    assert "other programs" not in shown(100, table.comparison(quiet))
    loads = (0.02, 0.31, None)
    runs = [run.model_copy(update={"busy_elsewhere": load}) for run, load in zip(quiet.runs, loads, strict=True)]
    text = shown(100, table.comparison(quiet.model_copy(update={"runs": runs})))
    assert ["2", "31", "-"] in [line.replace("│", " ").split()[-3:] for line in text.splitlines()]
    assert_names(text, "other programs", "31 %")


def test_accuracy_by_seed__shows_each_seed_and_the_spread(tmp_path: Path) -> None:
    told = report_of(tmp_path, seeds=3)
    text = shown(80, table.accuracy_by_seed(told))
    rows = [line.replace("│", " ").split() for line in text.splitlines()]
    for row in (["seed", "3", "83.00"], ["mean", "82.00"], ["standard", "deviation", "1.00"]):
        assert [*row, row[-1], row[-1]] in rows
    assert "mean of 3 seeds" in shown(80, table.comparison(told))


def test_report__names_its_network_and_every_loss(tmp_path: Path) -> None:
    loopback, testbed = (report_of(tmp_path, seeds=1, network=one) for one in ("loopback", "testbed"))
    text = " ".join(shown(200, table.comparison(loopback)).split())
    assert "2 workers and 1 summation service on loopback; with loss, each process drops 1 % of its packets" in text
    title = plot.draw(loopback).get_suptitle()
    assert "2 workers and 1 summation service on loopback, 1 % packet loss, loss bound 10 %" in title
    assert "2 hosts, links of 200 Mbit/s, 1 % packet loss (leaf0-spine1 5 %)," in plot.draw(testbed).get_suptitle()


def test_progress__calls_missing_gradients_what_the_table_does(tmp_path: Path) -> None:
    run = run_specs(settings(tmp_path))[-1]
    progress = Progress(run, STEPS)
    for event in events(run):
        progress.update(event)
    assert "training loss 0.360" in progress.line()
    assert progress.line().endswith("gradients missing 10.00 %")


@pytest.mark.parametrize("seeds", [1, 2])
def test_plot__is_a_picture(seeds: int, tmp_path: Path) -> None:
    from matplotlib import image

    picture = image.imread(plot.write_png(report_of(tmp_path, seeds=seeds), tmp_path))
    assert min(picture.shape[:2]) > 300
    assert picture.std() > 0.05


def test_plot__ticks_do_not_collide_no_legend_hides_data_and_seeds_differ(tmp_path: Path) -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot")
    figure = plot.draw(report_of(tmp_path, seeds=3))
    figure.canvas.draw()
    for ax in figure.axes:
        assert ax.get_legend() is None
        title = ax.title.get_window_extent()
        assert 0 <= title.x0 < title.x1 <= figure.bbox.x1
        styles = [(line.get_color(), line.get_linewidth(), str(line._unscaled_dash_pattern)) for line in ax.lines]
        assert len(set(styles)) == len(styles) == 9
        for axis in (ax.xaxis, ax.yaxis):
            low, high = sorted(axis.get_view_interval())
            ticks = [(*axis.get_majorticklabels(),), (*axis.get_minorticklabels(),)]
            places = [(*axis.get_majorticklocs(),), (*axis.get_minorticklocs(),)]
            boxes = [
                label.get_window_extent()
                for labels, values in zip(ticks, places, strict=True)
                for label, value in zip(labels, values, strict=False)
                if label.get_text() and low <= value <= high
            ]
            assert len(boxes) > 1
            assert not any(one.overlaps(other) for i, one in enumerate(boxes) for other in boxes[:i])
    (legend,) = figure.legends
    texts = [text.get_text() for text in legend.get_texts()]
    assert len(texts) == 6
    assert {"no loss", "seed 1", "seed 2", "seed 3"} <= set(texts)
    assert not any(legend.get_window_extent().overlaps(ax.get_window_extent()) for ax in figure.axes)
    pyplot.close(figure)


def test_plot__no_two_seeds_have_one_line() -> None:
    assert len({plot.dashes(number) for number in range(20)}) == 20


def watch(display: LiveDisplay | PlainDisplay, run: RunSpec) -> None:
    """The display of one whole run."""
    with display:
        display.begin(run)
        record = RunRecord(run)
        for event in events(run):
            record.add(event, NAMES)
            display.observe(record, event)


@pytest.mark.parametrize("network", ["loopback", "testbed"])
@pytest.mark.parametrize("seeds", [1, 2])
@pytest.mark.parametrize("width", [80, 140])
def test_live_display__fits_the_terminal_and_shows_the_latest(
    width: int, seeds: int, network: Network, tmp_path: Path
) -> None:
    runs = run_specs(settings(tmp_path, network=network, seeds=seeds))
    output = io.StringIO()
    console = Console(file=output, width=width, force_terminal=True)
    display = make_display(console, runs, steps=240, live=True)
    assert isinstance(display, LiveDisplay)
    watch(display, runs[-1])
    text = shown(width, display._render())
    assert all(len(line) <= width for line in text.splitlines())
    assert "curve: test accuracy, 0 to 100 %, of 10 images" in text
    rows = [line for line in text.splitlines() if "bound 10 %" in line]
    # The seed, the curve, the step, the mean loss of 20 steps, test accuracy, steps/s, missing gradients and the
    # seconds to 80 %.
    seed = [str(seeds)] if seeds > 1 else []
    assert rows[-1].split("bound 10 %")[1].split() == [
        *seed,
        "▇",
        "20/240",
        "0.360",
        str(80.0 + seeds),
        "10.00",
        "10.00",
        "2.0",
    ]
    assert "s to" in text
    others = [line.split()[-6:] for line in text.splitlines() if "no loss" in line]
    assert others == [["0/240", *"-----"]] * len(others)


def test_live_display__compares_the_time_to_what_all_tested_runs_reached(tmp_path: Path) -> None:
    first, second, *_ = runs = run_specs(settings(tmp_path))
    display = LiveDisplay(Console(file=io.StringIO(), width=80, force_terminal=True), runs, steps=STEPS)

    def seconds(*curves: tuple[RunSpec, list[float]]) -> list[list[str]]:
        """The end of the table's head, and the last figure of the rows."""
        for run, accuracies in curves:
            display.begin(run)
            for event in events(run)[WORKERS : -2 * WORKERS - 1]:
                display.observe(RunRecord(run), event)
            for number, accuracy in enumerate(accuracies, 1):
                tested = Evaluated(rank=0, step=5 * number, images=1_000, accuracy=accuracy)
                display.observe(RunRecord(run), tested)
        rows = [line.split() for line in shown(80, display._render()).splitlines()]
        (head,) = (row[-2:] for row in rows if row[-1:] == ["%"])
        return [head] + [row[-1:] for row in rows if "20/20" in row]

    assert seconds() == [["-", "%"]]
    assert seconds((first, [0.31, 0.52, 0.83]))[-1] == ["1.5"]
    # The second reached 60 %, so the first's seconds to that are shown, not those to 80 %.
    told = seconds((second, [0.2, 0.62, 0.4]))
    assert told[0] == ["60", "%"]
    assert told[1:] == [["1.5"], ["1.0"]]
    curves = [one.curve(display._levels) for one in display._progress]
    assert curves == ["▃▅▇", "▂▅▄", ""]


def test_live_display__curves_need_no_unicode(tmp_path: Path) -> None:
    runs = run_specs(settings(tmp_path))
    file = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    display = LiveDisplay(Console(file=file, width=80, force_terminal=True), runs, steps=STEPS)
    watch(display, runs[0])
    assert display._progress[0].curve(display._levels) == "8"


def test_progress__does_not_depend_on_whose_report_comes_first(tmp_path: Path) -> None:
    run = run_specs(settings(tmp_path))[1]
    steps = [event for event in events(run) if isinstance(event, StepDone)]
    late = [event for event in steps if event.rank == 1][:-3] + [event for event in steps if event.rank == 0]
    lines = []
    for order in (steps, late):
        progress = Progress(run, STEPS * 2)
        for event in order:
            progress.update(event)
        lines.append(progress.line())
    assert lines[0] == lines[1]


def test_progress__reports_the_number_of_test_images(tmp_path: Path) -> None:
    run = run_specs(settings(tmp_path))[1]
    progress = Progress(run, STEPS)
    for event in [Evaluated(rank=0, step=1, images=1_000, accuracy=0.5), *events(run)]:
        progress.update(event)
        if isinstance(event, Evaluated) and event.images == 1_000:
            assert "test accuracy 50.0 % (1,000 images)" in progress.line()
        elif isinstance(event, StepDone):
            assert "test accuracy" not in progress.line()  # that of an earlier step
    assert "test accuracy 81.0 % (10 images)" in progress.line()


def test_plain_display__is_never_silent_for_long(tmp_path: Path) -> None:
    runs = run_specs(settings(tmp_path))
    output = io.StringIO()
    with PlainDisplay(Console(file=output, width=80), steps=STEPS, quiet_seconds=0.01) as display:
        display.begin(runs[0])
        until(lambda: "the processes start" in output.getvalue())
        record = RunRecord(runs[0])
        for event in events(runs[0])[: 2 * WORKERS]:  # all are ready, and rank 0's first step
            display.observe(record, event)
        until(lambda: "  step 1/20 (" in output.getvalue())
    assert output.getvalue().startswith("run: no loss, seed 1")


def test_plain_display__a_few_lines_per_run(tmp_path: Path) -> None:
    runs = run_specs(settings(tmp_path))
    output = io.StringIO()
    display = make_display(Console(file=output, width=60), runs, steps=STEPS, live=True)
    assert isinstance(display, PlainDisplay)
    watch(display, runs[0])
    lines = output.getvalue().splitlines()
    assert lines[0] == "run: no loss, seed 1"
    assert lines[1].startswith("  step 1/20: training loss 2.000, train accuracy 0.0 %")
    assert lines[-1].startswith("  step 20/20")
    assert len(lines) <= 12
    assert [line for line in lines if "test accuracy" in line] == [lines[-1]]


def test_plain_display__each_evaluation_has_one_line_with_the_figures_of_its_step(tmp_path: Path) -> None:
    assert EVALUATIONS == PLAIN_LINES_PER_RUN
    run = run_specs(settings(tmp_path))[0]
    output = io.StringIO()
    display = PlainDisplay(Console(file=output, width=60), steps=STEPS)
    with display:
        display.begin(run)
        record = RunRecord(run)
        for event in events(run):
            display.observe(record, event)
            if isinstance(event, StepDone) and event.step in (3, 8):  # as a line is due, and between two
                tested = Evaluated(rank=event.rank, step=event.step + 1, images=1_000, accuracy=event.step / 10)
                display.observe(record, tested)
    tested = [line for line in output.getvalue().splitlines() if "test accuracy" in line]
    assert [line.split()[1] for line in tested] == ["4/20:", "9/20:", "20/20:"]
    assert ["30.0 % (1,000" in tested[0], "80.0 % (1,000" in tested[1], "81.0 % (10 " in tested[2]] == [True] * 3
