"""``tools/rank_outputs.py``: the output of the ranks of a measurement, and their end when one fails."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from checks import names
from loading import load

outputs = load(Path(__file__).resolve().parents[3] / "tools" / "rank_outputs.py", "mlt_rank_outputs")


def ranks(*programs: str) -> list[subprocess.Popen[str]]:
    return [subprocess.Popen([sys.executable, "-c", one], **outputs.PIPES) for one in programs]


def test_results_of__reads_the_last_line_of_each_rank() -> None:
    assert outputs.results_of("case", ranks("print('log\\n{\"a\": 1}')", "print('{}')"), 60) == [{"a": 1}, {}]


def test_outputs_of__names_the_rank_that_fails_and_ends_the_others() -> None:
    started = ranks("import time; time.sleep(600)", "raise SystemExit('no memory')")
    with pytest.raises(outputs.RankError, match=names("case", "rank 1", "status 1", "no memory")):
        outputs.outputs_of("case", started, 300)
    assert started[0].returncode is not None


def test_outputs_of__names_the_rank_that_does_not_end() -> None:
    with pytest.raises(outputs.RankError, match=names("case", "rank 0", "0.1 s")):
        outputs.outputs_of("case", ranks("import time; time.sleep(600)"), 0.1)
