"""Print the requirements of the named extras of pyproject.toml, one per line, for ``pip install -r``.

Installing ``.[extra]`` would also build the wheel; with this script the tools can be installed first.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path


def requirements(text: str, extras: list[str]) -> list[str]:
    """Return the base dependencies and those of ``extras`` (no toml reader in Python 3.10's library)."""
    found: list[str] = []
    for name in ["dependencies", *extras]:
        match = re.search(rf"^{re.escape(name)} = \[(.*?)\]\s*$", text, re.S | re.M)
        if match is None:
            raise SystemExit(f"extra_requirements: pyproject.toml has no list named {name!r}")
        found += re.findall(r'"([^"]+)"', match.group(1))
    return found


if __name__ == "__main__":
    toml = (Path(__file__).parent.parent / "pyproject.toml").read_text(encoding="utf-8")
    print("\n".join(requirements(toml, sys.argv[1:])))
