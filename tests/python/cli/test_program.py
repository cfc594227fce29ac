"""Programs to run: why one cannot be, and its exit status."""

from __future__ import annotations

import doctest
import sys
from pathlib import Path

import pytest

from mlt.cli import program
from mlt.cli.ending import NOT_EXECUTABLE, NOT_FOUND


def test_examples() -> None:
    assert doctest.testmod(program).failed == 0


def test_unrunnable__says_what_to_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, mode in (("run.py", 0o755), ("plain.py", 0o644), ("tool", 0o644)):
        file = tmp_path / name
        file.write_text("import sys\n")
        file.chmod(mode)
    assert program.unrunnable(sys.executable) is None
    cases = {
        "./run.py": (NOT_EXECUTABLE, "python ./run.py"),
        "./plain.py": (NOT_EXECUTABLE, "python ./plain.py"),
        "./tool": (NOT_EXECUTABLE, "chmod +x ./tool"),
        "tool": (NOT_FOUND, "./tool"),
        str(tmp_path): (NOT_EXECUTABLE, "folder"),
        "no-such-program-of-anybody": (NOT_FOUND, "not found"),
    }
    for word, (status, text) in cases.items():
        found = program.unrunnable(word)
        assert found is not None
        assert found[0] == status, word
        assert text in found[1]
