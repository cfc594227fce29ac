"""``tools/crossover.py`` with real ranks: a row for each size, a figure for each algorithm."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
ALGORITHMS = ("direct", "central", "ring", "halving")  # of one host


def test_crossover__has_a_figure_of_each_algorithm_at_each_size() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "crossover.py", "--ranks", "3", "--sizes", "4,65536", "--turns", "1",
         "--seconds", "0.05"],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = [line.strip("| ").split(" | ") for line in done.stdout.splitlines() if line.startswith("| ")]
    assert [row[0] for row in rows] == ["3 ranks", "4 B", "64 KiB"]
    assert tuple(rows[0][1:]) == ALGORITHMS
    for row in rows[1:]:
        figures = [float(cell.strip("*")) for cell in row[1:]]
        assert len(figures) == len(ALGORITHMS)
        assert min(figures) > 0
        bold = [float(cell.strip("*")) for cell in row if cell.startswith("**")]
        assert bold == [min(figures)] * len(bold) != []
