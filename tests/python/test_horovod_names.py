"""docs/horovod-names.md is that of the code."""

from __future__ import annotations

from pathlib import Path

import pytest
from loading import load

names = load(Path(__file__).resolve().parents[2] / "tools" / "horovod_names.py")


def test_page__is_that_of_the_code() -> None:
    assert names.PAGE.read_text(encoding="utf-8") == names.page(), "run python tools/horovod_names.py"


def test_page__says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = tmp_path / "module.py"
    module.write_text('__all__ = ["size", "lossy"]\n')
    monkeypatch.setattr(names, "MODULES", {"horovod.any": ("mlt.any", str(module), "rank size")})
    assert "| `horovod.any` | `mlt.any` | 1 of 2 | `rank` | `lossy` |" in names.page()


def test_public_names__without_a_list_are_those_defined(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text("class One: ...\ndef two(): ...\ndef _three(): ...\n")
    assert names.public_names(module) == {"One", "two"}
