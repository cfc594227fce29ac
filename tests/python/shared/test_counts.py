"""Counts in texts: the noun's form goes with the number, in the helper and in what commands print."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mlt._shared.counts import count_of

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(
    ("number", "noun", "text"),
    [
        (0, "path", "0 paths"),
        (1, "path", "1 path"),
        (2, "path", "2 paths"),
        (1, "switch", "1 switch"),
        (3, "switch", "3 switches"),
        (2, "class", "2 classes"),
        (2, "box", "2 boxes"),
        (2, "key", "2 keys"),
        (2, "policy", "2 policies"),
        (12_345, "packet", "12,345 packets"),
        (1, "QoS statement", "1 QoS statement"),
    ],
)
def test_count_of__the_form_goes_with_the_number(number: int, noun: str, text: str) -> None:
    assert count_of(number, noun) == text


def test_count_of__takes_an_irregular_plural() -> None:
    assert (count_of(1, "leaf", "leaves"), count_of(2, "leaf", "leaves")) == ("1 leaf", "2 leaves")


def test_sources__form_no_plural_by_hand() -> None:
    by_hand = re.compile(r"""['"]s?['"] if \w+(\.\w+)* (==|!=|>) 1 else ['"]s?['"]""")
    for folder in ("python/mlt", "plugins", "switch_configs", "studies"):
        for path in (ROOT / folder).rglob("*.py"):
            found = by_hand.search(path.read_text(encoding="utf-8"))
            assert found is None, (path, found)
