"""The command line that the checks of this folder share: a source tree, a line per violation, exit status 1 if any."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from pathlib import Path


def run(rule: str, description: str | None, check: Callable[[Path], Iterable[str]]) -> int:
    """Print what ``check`` finds in the tree that the command line names; returns the exit status."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("root", type=Path, help="top of the source tree")
    found = list(check(parser.parse_args().root))
    for violation in found:
        print(f"{rule}: {violation}")
    return 1 if found else 0
