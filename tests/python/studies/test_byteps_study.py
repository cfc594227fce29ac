"""The BytePS regeneration command in short form."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from studies.byteps import GOODPUT, gains, main, optimal_goodput, overloads


def test_gains__paper_example() -> None:
    (row,) = gains([(32, 16)])
    assert row["over_all_reduce"] == pytest.approx(1504 / 1024)
    assert row["over_parameter_server"] == pytest.approx(1504 / 992)


def test_optimal_goodput__from_all_reduce_to_line_rate() -> None:
    line = [row["gbit_per_second"] for row in optimal_goodput(workers=8, servers=range(9))]
    assert line == sorted(line)
    assert line[0] == pytest.approx(GOODPUT / 1e9 * 8 / 14)  # n / (2 (n - 1)) of a link
    assert line[-1] == pytest.approx(GOODPUT / 1e9)


def test_overloads__even_placement_is_near_the_plan_and_hashing_is_not() -> None:
    row = overloads(workers=8, servers=4, partition_bytes=4 * 2**20, models=5)
    assert row["placed_evenly"] < 1.05 < row["hashed"]


def test_main__writes_its_numbers(tmp_path: Path) -> None:
    main(["--out", str(tmp_path)])
    assert len(json.loads((tmp_path / "byteps.json").read_text())["gains"]) == 11
