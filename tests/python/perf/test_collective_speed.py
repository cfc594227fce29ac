"""``tools/collective_speed``: its page without measuring, and its short form with real ranks."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from loading import load_folder

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "tools" / "collective_speed"


@pytest.fixture(scope="module")
def speed() -> ModuleType:
    return load_folder(FOLDER, "mlt_collective_speed")


def test_page__names_the_cells_in_which_a_peer_is_faster(speed: ModuleType) -> None:
    row = {"4": {"mlt": 1e-6, "gloo": 2e-6}, "1048576": {"mlt": 2.5e-3, "gloo": 2e-3}}
    times = {verb: row if verb != "barrier" else {"4": row["4"]} for verb in sys.modules["calls"].VERBS}
    both = {verb: {size: {**cell, "Open MPI": 3e-3} for size, cell in cells.items()} for verb, cells in times.items()}
    text = speed.page([("two", times), ("three", both)], "it is not installed")
    two, three = text.split("\n## ")[1:]
    assert "gloo is faster in 8 of 17 cells: all_reduce of 1 MiB, " in two
    assert "| `all_gather` | 1.0 / 2.0 | 2,500 / 2,000 |" in two
    assert "| `barrier` | 1.0 / 2.0 |  |" in two
    assert "Open MPI is faster in 0 of 17 cells.\n" in three
    assert "| `reduce` | 1.0 / 2.0 / 3,000 | 2,500 / 2,000 / 3,000 |" in three
    assert "Open MPI is missing: it is not installed" in text
    again = speed.page([("three", times)], None, text)
    assert again.count("\n## ") == 2
    assert "\n## two\n" in again
    assert "Open MPI is faster" not in again.partition("\n## two\n")[0]


def test_short_form__times_every_verb_by_every_transport() -> None:
    pytest.importorskip("torch")
    pytest.importorskip("mlt._core")
    done = subprocess.run(
        [sys.executable, str(FOLDER), "--short"], capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 0, done.stderr
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \|", done.stdout, re.MULTILINE)
    assert len(rows) == 9
    transports = 2 if "Open MPI is missing" in done.stdout else 4
    for verb, cell in rows:
        assert len([float(time.replace(",", "")) > 0 for time in cell.split(" / ")]) == transports, verb
