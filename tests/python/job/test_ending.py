"""The report of a process to its peers about its end."""

from __future__ import annotations

import subprocess
import sys

import pytest

import mlt
from mlt.job import ending


class ShapeError(ValueError):
    pass


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (None, ""),
        (SystemExit(), ""),
        (SystemExit(0), ""),
        (GeneratorExit(), ""),
        (SystemExit(3), "ended by sys.exit(3)"),
        (SystemExit("the secret is abc"), "ended by sys.exit() with a message"),
        (KeyboardInterrupt(), "ended by KeyboardInterrupt"),
        (ValueError("the secret is abc"), "ended by ValueError"),
        (ShapeError(), f"ended by {__name__}.ShapeError"),
        (mlt.PeerFailedError("rank 4 failed", peer=4), "ended by mlt.errors.PeerFailedError about rank 4"),
        (mlt.ConfigError("no"), "ended by mlt.errors.ConfigError"),
    ],
)
def test_reason_of__names_the_type_and_never_the_text(error: BaseException | None, reason: str) -> None:
    assert ending.reason_of(None if error is None else type(error), error) == reason


@pytest.mark.parametrize(
    ("last", "printed"),
    [("raise KeyError('x')", "ended by KeyError"), ("pass", ""), ("sys.exit(0)", ""), ("raise SystemExit", "")],
)
def test_unhandled__is_known_when_the_interpreter_ends(last: str, printed: str) -> None:
    program = (
        f"import atexit, sys\nfrom mlt.job import ending\natexit.register(lambda: print(ending.unhandled()))\n{last}"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.strip() == printed
