"""Docstrings name their subject: none begins in the middle of a sentence."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("examples", "plugins", "python", "studies", "switch_configs", "tests", "tools")
FRAGMENT = re.compile(r'"""(As|How|Of|That|To|What|Where|Which|Who|With)\b')


def fragments(text: str) -> list[int]:
    """Numbers of the lines that begin such a docstring."""
    return [number for number, line in enumerate(text.splitlines(), 1) if FRAGMENT.match(line.lstrip())]


def test_fragments__first_words_of_docstrings_only() -> None:
    quotes = '"' * 3
    text = f"def f():\n    {quotes}Of a call.{quotes}\n    {quotes}Offset.{quotes}\nx = {quotes}With text{quotes}\n"
    assert fragments(text) == [2]


def test_docstrings__begin_with_their_subject() -> None:
    paths = (path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py")))
    assert [f"{path}:{number}" for path in paths for number in fragments(path.read_text())] == []
