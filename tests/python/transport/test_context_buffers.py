"""A kernel that grants a smaller socket buffer than it was asked for is reported once, with the sysctl to set."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from checks import assert_names

import mlt
from mlt import context

# Two contexts in one process, each its job's only rank.
PROGRAM = """
import mlt
for _ in range(2):
    with mlt.Context(0, 1) as context:
        print(context.engine.receive_buffer_bytes, context.engine.wanted_receive_buffer_bytes)
"""


def test_context__warns_once_of_a_buffer_that_the_system_limits() -> None:
    limit = int(Path("/proc/sys/net/core/rmem_max").read_text())
    # Without the right to pass the limit (CAP_NET_ADMIN).
    command = ["setpriv", "--inh-caps=-net_admin", "--bounding-set=-net_admin", sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0 and "setpriv" in done.stderr:
        pytest.skip(f"rights cannot be dropped here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    granted, wanted = map(int, done.stdout.split()[:2])
    assert granted == min(limit, wanted)
    if limit >= wanted:
        assert done.stderr == ""
        return
    assert done.stderr.count("RuntimeWarning") == 1
    assert_names(done.stderr, "receive buffer", f"{limit} of {wanted} bytes")
    assert f"sudo sysctl -w net.core.rmem_max={wanted}" in done.stderr


def test_warn__is_silent_if_the_buffer_was_granted_and_warns_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context, "_warned_of_small_buffer", False)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        context._warn_of_small_buffer(8 << 20, 8 << 20)
        assert caught == []
        context._warn_of_small_buffer(212_992, 8 << 20)
        context._warn_of_small_buffer(212_992, 8 << 20)
    assert [one.category for one in caught] == [RuntimeWarning]
    assert "granted a receive buffer of 212992" in str(caught[0].message)


def test_engine__reports_its_actual_values() -> None:
    with mlt.Context(0, 1) as one:
        assert 0 < one.engine.receive_buffer_bytes <= one.engine.wanted_receive_buffer_bytes
