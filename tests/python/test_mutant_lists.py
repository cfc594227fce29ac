"""The lists of faults that `make mutants` plants: each still fits the code, so that no change silently disarms one."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("name", ["mutants.yaml", "drawn_mutants.yaml"])
def test_list__applies_to_the_code(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    spec = importlib.util.spec_from_file_location("mutants", ROOT / "tools" / "mutants.py")
    assert spec is not None
    assert spec.loader is not None
    mutants = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "mutants", mutants)
    spec.loader.exec_module(mutants)
    faults = mutants.read_mutants(ROOT / "tests" / "sim" / name)
    assert len({fault.name for fault in faults}) == len(faults) > 50
