"""Commands without the packages of their extra: an error that names what is missing and installs it, no traceback."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from checks import assert_names

from mlt._shared.extras import how_to_install

ROOT = Path(__file__).resolve().parents[3]
CLUSTER = str(ROOT / "examples" / "planners" / "testbed.yaml")
POLICY = str(ROOT / "examples" / "switch" / "paper-testbed.yaml")
# An interpreter that finds every package but those named.
PROGRAM = """
import sys
from importlib.machinery import PathFinder

class Hiding(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.split(".")[0] in {hidden} else PathFinder.find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = Hiding
from mlt.cli.main import main
main()
"""


def mlt_without(hidden: tuple[str, ...], *words: str) -> subprocess.CompletedProcess[str]:
    program = PROGRAM.format(hidden=set(hidden))
    command = [sys.executable, "-c", program, *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=110)


@pytest.mark.parametrize(
    ("hidden", "words", "extra"),
    [
        (("torch", "matplotlib"), ("demo", "--network", "loopback"), ("demo",)),
        (("matplotlib",), ("perf", "--local", "--plot", "x.png"), ("perf", "matplotlib")),
        (("scipy",), ("plan", "assign", CLUSTER), ("plan",)),
        (("networkx",), ("plan", "topology", "build", "psnet", "2"), ("plan",)),
        (("pyavd",), ("switch", "generate", POLICY, "--target", "eos"), ("switch", "pyavd")),
    ],
    ids=lambda value: " ".join(value[:2]),
)
def test_command__names_the_package_and_how_to_install_it(
    hidden: tuple[str, ...], words: tuple[str, ...], extra: tuple[str, ...]
) -> None:
    done = mlt_without(hidden, *words)
    shown = " ".join((done.stdout + done.stderr).split())
    assert done.returncode == 1, shown
    assert_names(shown, *hidden, how_to_install(*extra))
    assert "Traceback" not in shown


def test_validators__those_missing_are_named() -> None:
    done = mlt_without(("netutils",), "switch", "check", POLICY, "--target", "nxos", "--validators")
    # A cell of a table, which breaks lines.
    shown = " ".join(word for word in (done.stdout + done.stderr).split() if word != "│")
    assert_names(shown, "netutils", how_to_install("switch", "netutils"))
    assert "Traceback" not in done.stderr
