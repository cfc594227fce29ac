"""``import mlt`` and the command line stay light: nothing native or heavy is loaded before it is needed."""

from __future__ import annotations

import subprocess
import sys

import pytest


def loaded_after(code: str) -> set[str]:
    """Modules of a fresh interpreter that ran ``code``."""
    text = f"{code}; import sys; print(*sys.modules)"
    return set(subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True).stdout.split())


@pytest.mark.parametrize(
    ("code", "absent"),
    [
        ("import mlt", {"mlt._core", "numpy", "torch", "rich", "mlt.context"}),
        ("import mlt.job.rendezvous, mlt.job.configuration, mlt.errors", {"mlt._core", "numpy", "torch"}),
        ("import mlt; mlt.Context", {"torch", "rich", "typer"}),
        ("import mlt.cli.main", {"mlt._core", "numpy", "torch", "mlt.cli.serve"}),
    ],
)
def test_import__leaves_heavy_modules_alone(code: str, absent: set[str]) -> None:
    assert loaded_after(code) & absent == set()


def test_import__of_one_name_brings_what_it_needs() -> None:
    assert {"mlt._core", "mlt.context", "numpy"} <= loaded_after("import mlt; mlt.Context")
