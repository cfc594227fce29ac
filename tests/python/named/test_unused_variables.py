"""Variables of Horovod and BytePS that mlt does not read are named, once."""

from __future__ import annotations

import logging
import os

import pytest

from mlt._named import basics, unused_variables
from mlt._named.unused_variables import NAMES, unused


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Outside of a job, without variables of Horovod and BytePS, and before the warning."""
    for name in list(os.environ):
        if name.startswith(("HOROVOD_", "BYTEPS_")) or name in ("RANK", "WORLD_SIZE"):
            monkeypatch.delenv(name)
    unused_variables.warn_once.cache_clear()


def test_unused__are_those_of_the_program_only() -> None:
    of_the_program = ["BYTEPS_PARTITION_BYTES", "HOROVOD_AUTOTUNE", "HOROVOD_CYCLE_TIME", "HOROVOD_FUSION_TRESHOLD"]
    others = (*NAMES, "HOROVOD_CROSS_RANK", "HOROVOD_GLOO_IFACE", "HOROVOD_WITHOUT_MPI", "BYTEPS_NCCL_HOME", "PATH")
    environ = dict.fromkeys((*others, *reversed(of_the_program), "HOROVOD_GPU_ALLREDUCE"), "1")
    assert unused({**environ, "HOROVOD_LOG_LEVEL": " "}) == of_the_program


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The warnings of two jobs of this process."""
    with caplog.at_level(logging.WARNING, logger="mlt"):
        for _ in range(2):
            basics.init()
            basics.shutdown()
    return [record.getMessage() for record in caplog.records if "without effect" in record.getMessage()]


def test_init__logs_one_warning(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("HOROVOD_CYCLE_TIME", "5")
    monkeypatch.setenv("BYTEPS_PARTITION_BYTES", "1000")
    expected = "BYTEPS_PARTITION_BYTES, HOROVOD_CYCLE_TIME are set, without effect in mlt: see docs/horovod.md"
    assert warnings_of(caplog) == [expected]


def test_init__logs_none_on_other_ranks(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("HOROVOD_CYCLE_TIME", "5")
    monkeypatch.setattr(basics, "rank", lambda: 1)
    assert warnings_of(caplog) == []


def test_init__logs_none_where_all_have_an_effect(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("HOROVOD_STALL_CHECK_DISABLE", "1")
    assert warnings_of(caplog) == []
