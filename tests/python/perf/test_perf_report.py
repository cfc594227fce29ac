"""Reports of measurements: figures by hand, a table that fits a terminal, JSON that names its version."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from mlt.perf import report
from mlt.perf.conductor import Measurement, Skipped
from mlt.perf.options import Options
from mlt.perf.patterns import Case
from mlt.perf.problem import PerfError
from mlt.perf.remote import Host
from mlt.perf.session import Result

CASE = Case(pattern="incast", bytes=1_000_000, ranks=4)


def measurement(label: str = "mlt p=0", case: Case = CASE, **more: object) -> Measurement:
    seconds = [0.02] * 50 + [0.024, 0.0300] * 25
    made = Measurement(label.split()[0], label, case, seconds, elapsed_seconds=sum(seconds), cpu_seconds=0.9)
    return replace(made, **more)  # type: ignore[arg-type]


def result(*measurements: Measurement) -> Result:
    options = Options(pattern="incast", ranks=4, sizes=(1_000_000,))
    hosts = (Host(0, "127.0.0.1", "lo", 65_536),)
    return Result(options, "local", hosts, measurements, (Skipped("mpi", "not here"),), 3.0)


def test_goodput__is_of_the_busiest_port() -> None:
    assert report.goodput(measurement()) == pytest.approx(3 * 8e6 / 0.022)
    ring = Case(pattern="allreduce", bytes=1_000_000, ranks=4)
    assert report.goodput(measurement(case=ring)) == pytest.approx(1.5 * 8e6 / 0.022)
    shares = Case(pattern="alltoall", bytes=1_000_000, ranks=4)
    assert report.goodput(measurement(case=shares)) == pytest.approx(0.75 * 8e6 / 0.022)


def test_cpu_per_gigabyte__counts_what_crossed_the_network() -> None:
    # 100 rounds of three tensors of 1 MB.
    assert report.cpu_per_gigabyte(measurement()) == pytest.approx(0.9 / 0.3)


def test_loss_and_repairs__ours_by_counters_theirs_by_the_kernel() -> None:
    counters = {"data_packets_sent": 1_000, "data_packets_received": 990, "segments_repaired": 12}
    assert report.loss(measurement(counters=counters)) == pytest.approx(0.01)
    assert report.repairs(measurement(counters=counters, retransmitted=5)) == 12
    assert report.loss(measurement("tcp")) is None
    assert report.repairs(measurement("tcp", retransmitted=5)) == 5
    bare = measurement("raw-udp", Case(pattern="p2p", bytes=1_000_000, ranks=2), arrived=[900_000] * 100)
    assert report.loss(bare) == pytest.approx(0.1)
    assert report.repairs(bare) is None


def test_missing_fraction__is_of_all_bytes_sent() -> None:
    assert report.missing_fraction(measurement(missing_bytes=3_000_000)) == pytest.approx(0.01)


def test_tables__fit_a_terminal_and_state_what_p99_9_needs() -> None:
    slow = measurement("mlt p=0.1", replace(CASE, loss_bound=0.1), missing_bytes=30_000_000, retransmitted=123_456)
    fast = measurement("gloo", seconds=[0.000_9] * 99 + [0.212_345], retransmitted=123_456)
    for rows in ([slow], [slow, fast]):
        text = io.StringIO()
        for table in report.tables(result(*rows)):
            Console(file=text, width=80).print(table)
        assert "…" not in text.getvalue()
        assert "p99.9 needs 1,000 rounds" in text.getvalue()
        assert "incast of 1 MB, 4 ranks, 100 rounds" in text.getvalue()


def test_write_json__can_be_read_back(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "out.json"
    report.write_json(result(measurement()), path)
    found = json.loads(path.read_text(encoding="utf-8"))
    assert found["schema"] == report.SCHEMA
    assert found["skipped"] == [{"transport": "mpi", "why": "not here"}]
    (row,) = found["results"]
    assert row["seconds"]["p99"] == pytest.approx(0.03)
    assert row["seconds"]["p99.9"] is None
    assert len(row["samples_seconds"]) == 100


def test_write__a_place_that_is_none_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for write in (report.write_json, report.write_plot):
        with pytest.raises(PerfError, match="file"):
            write(result(measurement()), tmp_path / "file" / "out.png")


def test_write_plot__unknown_formats_are_named(tmp_path: Path) -> None:
    with pytest.raises(PerfError, match="--plot"):
        report.write_plot(result(measurement()), tmp_path / "out.nope")


@pytest.mark.parametrize("sizes", [1, 3])
def test_plot__the_legend_is_beside_the_curves_and_names_each_once(sizes: int) -> None:
    pytest.importorskip("matplotlib")
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    names = [*(f"mlt p=0.{number}" for number in range(8)), "tcp", "gloo", "mpi", "raw-udp"]
    cases = [replace(CASE, bytes=1_000 << number) for number in range(sizes)]
    late = [0.001] * 5 + [0.9] * 95  # its curve ends in the lower right corner
    figure = report.plot_figure(result(*(measurement(name, case, seconds=late) for case in cases for name in names)))
    FigureCanvasAgg(figure).draw()
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == names
    assert len({(line.get_color(), line.get_linestyle()) for line in legend.get_lines()}) == len(names)
    box = legend.get_window_extent()
    assert figure.bbox.contains(box.x0, box.y0)
    assert figure.bbox.contains(box.x1, box.y1)
    for panel in figure.axes:
        assert panel.get_legend() is None
        assert not box.overlaps(panel.get_tightbbox())
