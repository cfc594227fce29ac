"""``mlt demo``: the whole command on a short run, and what it does when things go wrong."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from checks import all_gone, assert_names, until

from mlt._shared.json_lines import line_of, object_of
from mlt.demo import report
from mlt.demo.events import Finished, StepDone, event_of
from mlt.demo.settings import DemoSettings, in_turns, run_specs

COMMAND = [sys.executable, "-m", "mlt.cli.main", "demo"]
UNPRIVILEGED = ["setpriv", "--bounding-set", "-all", "--inh-caps", "-all"]
STEPS = 6
# Nine processes load torch one after the other; on a machine that does other work too this takes minutes.
LIMIT_SECONDS = 270
pytestmark = pytest.mark.timeout(LIMIT_SECONDS + 30)


def settings(tmp_path: Path, **changes: object) -> DemoSettings:
    options: dict[str, object] = {
        "steps": STEPS,
        "loss": 0.01,
        "bound": 0.1,
        "seed": 1,
        "seeds": 1,
        "workers": 2,
        "data": "auto",
        "output": tmp_path,
        "live": False,
    }
    return DemoSettings(**{**options, **changes})  # type: ignore[arg-type]


# -- the whole command -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A demo that may not make a testbed, and is not told to do without one."""
    folder = tmp_path_factory.mktemp("demo") / "report"
    words = ["--steps", str(STEPS), "--data", "mnist", "--loss", "0.03"]
    command = [*UNPRIVILEGED, *COMMAND, *words, "--output", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder, done.stdout


@pytest.mark.slow
def test_demo__report_holds_every_number(finished: tuple[Path, str]) -> None:
    told = report.DemoReport.model_validate_json((finished[0] / report.REPORT_FILE).read_text())
    assert [run.name for run in told.runs] == ["no-loss", "reliable", "bounded"]
    assert told.data.licence
    assert told.settings.steps == STEPS
    for run in told.runs:
        assert len(run.steps) == STEPS * told.settings.workers
        assert set(run.counters) == {"worker-0", "worker-1", "service-0"}
        assert run.replicas_identical
        assert run.gradient_bytes == STEPS * told.settings.workers * 4 * run.parameters
        assert 0 <= run.test_accuracy <= 1
        assert 0 < run.sync_p50 <= run.sync_p99
        assert run.bytes_sent is not None
        assert run.bytes_sent > run.gradient_bytes


@pytest.mark.slow
def test_demo__without_privilege_trains_on_loopback_and_says_what_it_cannot_show(finished: tuple[Path, str]) -> None:
    text = " ".join(finished[1].split())
    assert_names(text, "no testbed on this machine (", "network namespaces", "root", "On loopback instead")
    assert "where processes drop packets themselves: gloo, whose TCP loses nothing there, is left out" in text
    assert "2 workers and 1 summation service on loopback" in text
    told = report.DemoReport.model_validate_json((finished[0] / report.REPORT_FILE).read_text()).settings
    assert (told.network, told.workers, told.services, told.testbed) == ("loopback", 2, 1, None)


@pytest.mark.slow
def test_demo__losses_happen_where_requested(finished: tuple[Path, str]) -> None:
    told = report.DemoReport.model_validate_json((finished[0] / report.REPORT_FILE).read_text())
    no_loss, reliable, bounded = told.runs
    assert no_loss.packets_dropped == 0
    assert no_loss.gradient_loss == 0
    assert no_loss.segments_lost == 0
    assert bounded.packets_dropped > 0
    assert 0 < bounded.gradient_loss <= told.settings.bound
    assert reliable.packets_dropped > 0
    assert reliable.segments_repaired
    assert bounded.segments_lost
    assert reliable.segments_lost == 0
    assert reliable.gradient_loss == 0
    assert told.equals_no_loss["reliable"] == [True]
    assert told.equals_no_loss["bounded"] == [False]


@pytest.mark.slow
def test_demo__prints_data_licence_and_the_comparison(finished: tuple[Path, str]) -> None:
    output = finished[1]
    assert "licence" in output
    for words in ("MNIST", "test accuracy", "steps/s", "synchronisation p99", "segments sent again", "packets dropped"):
        assert words in output


@pytest.mark.slow
def test_demo__draws_the_plot(finished: tuple[Path, str]) -> None:
    from matplotlib import image

    from mlt.demo.plot import PLOT_FILE

    picture = image.imread(finished[0] / PLOT_FILE)
    assert picture.shape[0] > 300
    assert picture.std() > 0.05


def children_of(pid: int) -> dict[int, str]:
    """Command lines by process id of the direct children."""
    found: dict[int, str] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == pid:
                found[int(entry.name)] = (entry / "cmdline").read_text().replace("\0", " ")
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


@pytest.fixture
def training(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], dict[int, str]]]:
    """A demo that is in the middle of a run, and its processes."""
    words = ["--network", "loopback", "--steps", "100000", "--data", "mnist"]
    command = [*COMMAND, *words, "--output", str(tmp_path / "report")]
    demo = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        assert demo.stdout is not None
        # Past the first step, so that it is the transport that notices.
        assert any("step 1/" in line for line in demo.stdout)
        children = children_of(demo.pid)
        assert len(children) == 3
        yield demo, children
    finally:
        if demo.poll() is None:
            demo.kill()
            demo.wait()


@pytest.mark.slow
def test_demo__killed_worker_is_named_and_nothing_is_left(
    training: tuple[subprocess.Popen[str], dict[int, str]],
) -> None:
    demo, children = training
    victim = next(pid for pid, line in children.items() if "mlt.demo.worker" in line and '"rank":1' in line)
    os.kill(victim, signal.SIGKILL)
    output, _ = demo.communicate(timeout=60)
    assert demo.returncode == 1
    assert_names(output, "worker-1", "rank 1", f"pid {victim}", "SIGKILL")
    until(lambda: all_gone(children))


@pytest.mark.slow
def test_demo__interrupt_ends_every_process(training: tuple[subprocess.Popen[str], dict[int, str]]) -> None:
    demo, children = training
    demo.send_signal(signal.SIGINT)
    output, _ = demo.communicate(timeout=60)
    assert demo.returncode == 130
    assert "interrupted" in output
    until(lambda: all_gone(children))


@pytest.mark.slow
def test_demo__processes_end_with_a_killed_parent(training: tuple[subprocess.Popen[str], dict[int, str]]) -> None:
    demo, children = training
    demo.kill()
    demo.wait()
    until(lambda: all_gone(children))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--steps", "1"], "--steps is 1"),
        (["--loss", "1.00"], "--loss '1.00'"),
        (["--loss", "100%"], "--loss is 1"),
        (["--loss-bound", "-0.5"], "--loss-bound '-0.5'"),
        (["--workers", "0"], "--workers is 0"),
        (["--timeout", "0"], "--timeout is 0"),
        (["--output", "/dev/null"], "it is a file"),
    ],
)
def test_demo__rejects_bad_options(options: list[str], words: str, tmp_path: Path) -> None:
    done = subprocess.run([*COMMAND, *options], capture_output=True, text=True, timeout=60, cwd=tmp_path, check=False)
    assert done.returncode == 2
    assert words in done.stderr
    assert not list(tmp_path.iterdir())


def test_demo__names_what_a_testbed_lacks(tmp_path: Path) -> None:
    words = ["--network", "testbed", "--steps", "2", "--output", str(tmp_path / "report")]
    guarded = [*UNPRIVILEGED, *COMMAND, *words]
    done = subprocess.run(guarded, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert_names(done.stderr, "network namespaces", "root")
    assert not (tmp_path / "report").exists()


# -- settings and events ---------------------------------------------------------------------------------------------


def test_run_specs__three_runs_per_seed(tmp_path: Path) -> None:
    specs = run_specs(settings(tmp_path, seeds=2, loss=0.02, bound=0.05))
    assert [(s.name, s.seed, s.drop, s.bound) for s in specs] == [
        (name, seed, drop, bound)
        for seed in (1, 2)
        for name, drop, bound in (("no-loss", 0.0, 0.0), ("reliable", 0.02, 0.0), ("bounded", 0.02, 0.05))
    ]


def test_run_specs__on_a_testbed_gloo_trains_first(tmp_path: Path) -> None:
    specs = run_specs(settings(tmp_path, network="testbed"))
    assert [(s.backend, s.name, s.drop) for s in specs] == [
        ("gloo", "gloo-no-loss", 0.0),
        ("gloo", "gloo-lossy", 0.01),
        ("mlt", "no-loss", 0.0),
        ("mlt", "reliable", 0.01),
        ("mlt", "bounded", 0.01),
    ]


def test_in_turns__what_is_compared_is_side_by_side_and_neither_always_first(tmp_path: Path) -> None:
    specs = run_specs(settings(tmp_path, network="testbed", seeds=2))
    turns = in_turns(specs)
    assert {(spec.seed, spec.name) for spec in turns} == {(spec.seed, spec.name) for spec in specs}
    names = [spec.name for spec in turns]
    assert names[5:] == names[4::-1]  # the second seed in reverse
    assert [spec.seed for spec in turns] == [1] * 5 + [2] * 5
    # gloo is first without loss, mlt with it.
    for first, second in (("gloo-no-loss", "no-loss"), ("reliable", "gloo-lossy")):
        assert names.index(second) == names.index(first) + 1
    assert [spec.name for spec in in_turns(run_specs(settings(tmp_path)))] == ["no-loss", "reliable", "bounded"]


def test_events__survive_the_link() -> None:
    event = Finished(rank=2, counters={"bytes_sent": 7})
    assert event_of(object_of(line_of(event.model_dump()))) == event


# -- report ----------------------------------------------------------------------------------------------------------


def test_slowest_per_step__takes_the_last_worker() -> None:
    def step(rank: int, number: int, seconds: float) -> StepDone:
        return StepDone(
            rank=rank,
            step=number,
            loss=1.0,
            accuracy=0.1,
            seconds=seconds,
            sync_seconds=0.1,
            exposed_seconds=0.1,
            buckets=1,
            bytes=4,
            missing_bytes=0,
            repairs=0,
        )

    steps = [step(0, 0, 0.5), step(1, 0, 0.7), step(1, 1, 0.2), step(0, 1, 0.4)]
    assert report._slowest_per_step(steps) == [0.7, 0.4]
