"""The one grammar of sizes and rates: ``256KiB``, ``40KB``, ``200mbit``.

Every command and file of the tree reads its numbers with ``scaled``; limits and messages stay with the reader. The case
of a unit does not matter; ``KB`` is 1,000 bytes, ``KiB`` 1,024.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal

RATES: dict[str, int] = {"bit": 1, "kbit": 10**3, "mbit": 10**6, "gbit": 10**9}
SIZES: dict[str, int] = {
    "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30,
}  # fmt: skip
NUMBER = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([A-Za-z%]*)\s*")


def scaled(text: str, units: Mapping[str, int], what: str, example: str) -> int:
    """``text`` in the base unit of ``units``, rounded; raises ValueError naming ``what`` where the unit is missing."""
    match = NUMBER.fullmatch(text)
    unit = match[2].lower() if match else ""
    if match is None or unit not in units:
        raise ValueError(f"{what} {text!r}: write it as {example} (units: {', '.join(units)})")
    return round(Decimal(match[1]) * units[unit])
