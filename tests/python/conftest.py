"""Fixtures shared by all Python tests."""

from __future__ import annotations

import gc
import signal
import sys

import pytest

# A shell that starts the tests in the background lets them ignore SIGINT, and every process under test would inherit
# that: those that must end on Ctrl-C could not be asked to.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Keeps garbage collection out of Hypothesis's search through the loaded modules.

    pyavd's templates are modules of which sys.modules holds weak references only; Hypothesis fails if one is collected
    while it looks.
    """
    if "pyavd" in sys.modules and getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
        gc.collect()
