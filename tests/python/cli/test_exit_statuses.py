"""The table of exit statuses in docs/command-line.md: each row, by a command that ends so."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from checks import until

ROOT = Path(__file__).resolve().parents[3]
MLT = [sys.executable, "-m", "mlt"]


def status(*words: str) -> int:
    return subprocess.run([*MLT, *words], capture_output=True, timeout=60, check=False).returncode


def after(number: signal.Signals) -> Callable[[Path], int]:
    """The status of a launch that gets a signal once its rank runs."""

    def ended(folder: Path) -> int:
        pytest.importorskip("mlt._core")
        ready = folder / "ready"
        words = [*MLT, "launch", "-n", "1", "sh", "-c", f"touch {ready}; exec sleep 60"]
        process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until(ready.exists)
        process.send_signal(number)
        return process.wait(timeout=30)

    return ended


def unread(_: Path) -> int:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        return subprocess.run([*MLT, "-h"], stdout=writer, timeout=60, check=False).returncode
    finally:
        os.close(writer)


def not_executable(folder: Path) -> int:
    program = folder / "program"
    program.write_text("neither a binary nor a script\n")
    program.chmod(0o755)
    # Without setpriv on the path, which would execute it instead.
    words = [*MLT, "launch", "-n", "1", str(program)]
    return subprocess.run(words, env={**os.environ, "PATH": "/nothing"}, capture_output=True, check=False).returncode


EXAMPLES: dict[str, tuple[int, Callable[[Path], int]]] = {
    "0": (0, lambda _: status("--version")),
    "1": (1, lambda _: status("testbed", "status", "--name", "nosuch")),
    "2": (2, lambda _: status("perf", "--port", "0")),
    "126": (126, not_executable),
    "127": (127, lambda _: status("launch", "no-such-program-of-anybody")),
    "129": (129, after(signal.SIGHUP)),
    "130": (130, after(signal.SIGINT)),
    "141": (141, unread),
    "143": (143, after(signal.SIGTERM)),
    "other": (128 + signal.SIGUSR1, lambda _: status("launch", "-n", "1", "sh", "-c", "kill -USR1 $$")),
}


def test_testbed__looks_for_the_program_before_it_makes_a_network() -> None:
    assert status("testbed", "run", "--hosts", "1", "--", "no-such-program-of-anybody") == EXAMPLES["127"][0]


def test_documentation__has_a_row_for_each() -> None:
    text = (ROOT / "docs" / "command-line.md").read_text(encoding="utf-8")
    table = text.partition("## Exit statuses")[2]
    assert re.findall(r"^\| (\w+) \|", table.partition("|---|---|")[2], re.MULTILINE) == list(EXAMPLES)


@pytest.mark.parametrize("name", EXAMPLES)
def test_status__is_what_the_documentation_says(name: str, tmp_path: Path) -> None:
    expected, ended = EXAMPLES[name]
    assert ended(tmp_path) == expected
