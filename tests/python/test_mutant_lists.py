"""The lists of faults that `make mutants` plants: each still fits the code, so that no change silently disarms one."""

from __future__ import annotations

from pathlib import Path

import pytest
from loading import load

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("name", ["mutants.yaml", "drawn_mutants.yaml"])
def test_list__applies_to_the_code(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    mutants = load(ROOT / "tools" / "mutants.py")
    faults = mutants.read_mutants(ROOT / "tests" / "sim" / name)
    assert len({fault.name for fault in faults}) == len(faults) > 50
