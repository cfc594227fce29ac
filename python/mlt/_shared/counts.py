"""Numbers of things in texts: "1 path", "2 paths", "3 switches"."""

from __future__ import annotations

import re

_HISSING = re.compile(r"(s|x|z|ch|sh)$")
_CONSONANT_AND_Y = re.compile(r"[^aeiou]y$")


def count_of(number: int, noun: str, plural: str | None = None) -> str:
    """``number``, its thousands separated, and ``noun`` in the form that goes with it.

    ``plural``: the form for all numbers but 1, where English doesn't add "s", "es" or "ies".

    >>> count_of(1, "path"), count_of(2, "switch"), count_of(1200, "leaf", "leaves")
    ('1 path', '2 switches', '1,200 leaves')
    """
    return f"{number:,} {noun if number == 1 else plural or _plural(noun)}"


def _plural(noun: str) -> str:
    if _CONSONANT_AND_Y.search(noun):
        return noun[:-1] + "ies"
    return noun + ("es" if _HISSING.search(noun) else "s")
