"""The short form of `make chaos`: ranks in a faulty network, and faults planted to test the checker."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from testbed_lab import ROOT, needs_testbed

pytestmark = [needs_testbed, pytest.mark.timeout(240)]
pytest.importorskip("mlt._core")

CHECKER = ROOT / "build" / "default" / "tests" / "mlt_chaos_check"
CLOCK = CHECKER.with_name("libmlt_chaos_clock.so")


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The traces of one short run, which broke no rule."""
    folder = tmp_path_factory.mktemp("chaos")
    words = ["--seconds", "16", "--longest", "7", "--seed", "20", "--keep", str(folder)]
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "chaos"), *words],
        capture_output=True,
        text=True,
        timeout=230,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def check(folder: Path) -> str:
    done = subprocess.run([str(CHECKER), str(folder)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode in (0, 1), done.stderr
    return done.stdout


Line = dict[str, str]
Change = Callable[[Line], list[Line]]


def read(text: str) -> Line:
    word, *pairs = text.split()
    return {"": word, **dict(pair.split("=", 1) for pair in pairs)}


def written(line: Line) -> str:
    return " ".join([line[""], *(f"{key}={value}" for key, value in line.items() if key)]) + "\n"


def plant(folder: Path, wanted: Callable[[Line, dict[str, Line]], bool], change: Change) -> None:
    """Change the first ``end`` or ``later`` record that ``wanted(record, posts by id)`` chooses."""
    for path in sorted(folder.glob("0000-[0-9].trace")):
        lines = [read(text) for text in path.read_text().splitlines()]
        posts = {line["id"]: line for line in lines if line[""] == "post"}
        for i, line in enumerate(lines):
            if line[""] in ("end", "later") and line["id"] in posts and wanted(line, posts):
                lines[i : i + 1] = change(line)
                path.write_text("".join(map(written, lines)))
                return
    raise AssertionError("no such record in the traces")


def is_receive(line: Line, posts: dict[str, Line], *, status: str = "complete", bound: float = 0.0) -> bool:
    post = posts[line["id"]]
    return (
        (line[""], post["verb"], line.get("status")) == ("end", "receive", status)
        and int(post["bytes"]) > 40_000
        and float(post["bound"]) >= bound
        and post["stop"] == "patient"
    )


def later(line: Line, seconds: float) -> str:
    return str(int(line["t"]) + round(seconds * 1e9))


def lose_beyond_the_bound(line: Line) -> list[Line]:
    """One element more than is allowed, by its status."""
    missing = str(int(line["allowed"]) + 4)
    return [{**line, "status": "within_bound", "missing_bytes": missing}]


PLANTS: dict[str, tuple[int, Callable[[Line, dict[str, Line]], bool], Change]] = {
    "one element beyond the bound": (
        1,
        lambda line, posts: is_receive(line, posts, bound=0.1) and posts[line["id"]]["element"] == "7",
        lose_beyond_the_bound,
    ),
    "another bound": (
        1,
        lambda line, posts: is_receive(line, posts, bound=0.1) and posts[line["id"]]["element"] == "7",
        lambda line: [{**line, "allowed": str(int(line["allowed"]) + 4)}],
    ),
    "a wrong byte": (2, is_receive, lambda line: [{**line, "digest": str(int(line["digest"]) ^ 1)}]),
    "a gap with something in it": (2, is_receive, lambda line: [{**line, "gaps": "1"}]),
    "a wrong sum": (
        2,
        lambda line, posts: line[""] == "end" and posts[line["id"]]["verb"] == "all_reduce",
        lambda line: [{**line, "digest": str(int(line["digest"]) ^ 1)}],
    ),
    "no completion": (3, is_receive, lambda line: []),
    "two completions": (3, is_receive, lambda line: [line, line]),
    "a completion of nothing": (3, is_receive, lambda line: [line, {**line, "id": "7"}]),
    "a send that ends as its receive did not": (
        3,
        lambda line, posts: line.get("status") == "complete" and posts[line["id"]]["verb"] == "send",
        lambda line: [{**line, "status": "within_bound", "missing_bytes": "8"}],
    ),
    "a peer that nothing cut off": (3, is_receive, lambda line: [{**line, "status": "peer_failed"}]),
    "cancelled without a cancel": (3, is_receive, lambda line: [{**line, "status": "cancelled"}]),
    "timed out too soon": (3, is_receive, lambda line: [{**line, "status": "timed_out"}]),
    "written outside": (4, is_receive, lambda line: [{**line, "guards": "1"}]),
    "written to what is sent": (
        4,
        lambda line, posts: line[""] == "end" and posts[line["id"]]["verb"] == "send",
        lambda line: [{**line, "digest": str(int(line["digest"]) ^ 1)}],
    ),
    "written after the end": (
        4,
        lambda line, posts: line[""] == "later",
        lambda line: [{**line, "digest": str(int(line["digest"]) ^ 1)}],
    ),
    "an end after the time-out": (14, is_receive, lambda line: [{**line, "t": later(line, 60)}]),
}


@pytest.mark.parametrize("name", PLANTS)
def test_chaos__checker_finds_planted_faults(name: str, traces: Path, tmp_path: Path) -> None:
    rule, wanted, change = PLANTS[name]
    folder = tmp_path / "traces"
    shutil.copytree(traces, folder)
    # Only what is planted decides: the faults of the run would excuse some of it.
    network = folder / "0000-network.trace"
    network.write_text("".join(line for line in network.read_text().splitlines(True) if line.startswith("job ")))
    plant(folder, wanted, change)
    assert f"broken rule {rule}:" in check(folder)


def test_chaos__checker_finds_loss_where_nothing_was_dropped(traces: Path, tmp_path: Path) -> None:
    folder = tmp_path / "traces"
    shutil.copytree(traces, folder)
    for path in folder.glob("*-network.trace"):
        path.write_text("".join(line for line in path.read_text().splitlines(True) if not line.startswith("drop ")))
    plant(
        folder,
        lambda line, posts: is_receive(line, posts, bound=0.5) and posts[line["id"]]["element"] == "7",
        lambda line: [{**line, "status": "within_bound", "missing": "0:1432", "missing_bytes": "1432"}],
    )
    assert "broken rule 8:" in check(folder)


def test_chaos__checker_finds_transfers_that_stall(traces: Path, tmp_path: Path) -> None:
    folder = tmp_path / "traces"
    shutil.copytree(traces, folder)
    (folder / "0000-network.trace").write_text(
        next(line for line in (traces / "0000-network.trace").read_text().splitlines(True) if line.startswith("job "))
    )
    plant(
        folder,
        lambda line, posts: is_receive(line, posts) and posts[line["id"]]["timeout"] == "8000000000",
        lambda line: [{**line, "status": "timed_out", "t": later(line, 8.1)}],
    )
    assert "broken rule 7:" in check(folder)


def test_chaos__a_wall_clock_jumps_and_the_monotonic_one_does_not(tmp_path: Path) -> None:
    clock = tmp_path / "clock"
    clock.write_bytes(struct.pack("=qqq", 0, 0, 3_600_000_000_000))
    code = "import time; print(time.time(), time.monotonic())"
    env = {**os.environ, "LD_PRELOAD": str(CLOCK), "MLT_CHAOS_CLOCK": str(clock)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    wall, monotonic = map(float, done.stdout.split())
    assert 3_500 < wall - time.time() < 3_601
    assert abs(monotonic - time.monotonic()) < 100


def test_chaos__an_unread_last_line_is_left_out_and_others_are_errors(tmp_path: Path) -> None:
    file = tmp_path / "0000-0.trace"
    file.write_text("life job=0 rank=0 pid=1 t=1\ngoodbye job=0 rank=0 t=2\npost job=0 ra")
    assert "broken 0" in check(tmp_path)
    file.write_text("life job=0 rank=0 pid=1 t=1\nnonsense job=0 rank=0\n")
    done = subprocess.run([str(CHECKER), str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "0000-0.trace:2: no such record: nonsense" in done.stderr
