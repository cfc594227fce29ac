"""The report of a process to its peers about its end."""

from __future__ import annotations

import subprocess
import sys

import pytest

import mlt
from mlt.job import ending

# As src/engine/path_mtu_errors.cc writes it; tests/python/testbed/test_testbed_mtu.py has the engine's own.
MTU = "MTU mismatch: the path from rank 0 to rank 1 drops packets of 1500 bytes; `mlt doctor 10.77.0.2` measures it"


class ShapeError(ValueError):
    pass


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


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
        (
            mlt.PeerFailedError(f"rank 0: send failed: {MTU} (tensor float32[4])", peer=1),
            f"ended by mlt.errors.PeerFailedError about rank 1: {MTU}",
        ),
        (caused(RuntimeError("secret"), mlt.PeerFailedError(f"failed: {MTU}")), f"ended by RuntimeError: {MTU}"),
        (caused(RuntimeError("secret"), mlt.PeerFailedError("rank 4 failed")), "ended by RuntimeError"),
        (ValueError(MTU), "ended by ValueError"),
    ],
    ids=repr,
)
def test_reason_of__names_the_type_and_no_text_but_that_of_an_mtu(error: BaseException | None, reason: str) -> None:
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


def test_blamed__is_the_rank_of_an_error_of_mlt_or_of_what_followed_from_it() -> None:
    about_four = mlt.PeerFailedError("rank 4 failed", peer=4)
    assert ending.blamed(about_four) == 4
    assert ending.blamed(caused(ValueError(), about_four)) == 4
    left = SystemExit(3)
    left.__context__ = about_four
    assert ending.blamed(left) == 4
    for error in (None, ValueError(), mlt.ConfigError("no"), SystemExit(3)):
        assert ending.blamed(error) is None
