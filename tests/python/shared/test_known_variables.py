"""Misspelt variables: found among the names of mlt, and reported once when a job starts."""

from __future__ import annotations

import logging
import subprocess
import sys

import pytest
from checks import assert_names
from test_docs import variables_of_the_table

import mlt
from mlt._shared import known_variables
from mlt._shared.known_variables import NAMES, misspelt
from mlt.diagnosis import doctor


@pytest.fixture(autouse=True)
def _not_warned_yet() -> None:
    known_variables.warn_once.cache_clear()


def test_names__are_those_of_the_table() -> None:
    assert {name for name in variables_of_the_table() if name.startswith("MLT_")} == NAMES


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("MLT_DATAPAHT", "MLT_DATAPATH"),
        ("MLT_PATH", "MLT_PATHS"),
        ("MLT_SERVICE", "MLT_SERVICES"),
        ("MLT_datapath", "MLT_DATAPATH"),
        ("MLT_SECRET", "MLT_JOB_SECRET"),
        ("MLT_FLIGHTRECORDER", "MLT_FLIGHT_RECORDER"),
        ("MLT_CHECKSUM", "MLT_CHECKSUMS"),
    ],
)
def test_misspelt__names_what_was_meant(name: str, meant: str) -> None:
    assert misspelt([name]) == {name: meant}


@pytest.mark.parametrize(
    "name",
    [
        *sorted(NAMES), "PATH", "NCCL_DEBUG", "_MLT_COMPLETE_WORDS", "MLT_COLOUR", "MLT_DATA", "MLT_PROFILES_PATH",
        "MLT_REPOSITORY", "MLT_SERVICE_HOST", "MLT_SERVICE_PORT", "MLT_SERVICE_PORT_HTTP", "MLT_PORT",
        "MLT_PORT_29500_TCP_ADDR", "MLT_PERF_SERVICE_HOST", "MLT_TEST_VMA", "MLT_CHECK_SEED", "MLT_REWRITE_GOLDEN",
        "MLT_BENCH_PROGRAMS", "MLT_VAN_BUILD", "MLT_SOAK_SEEDS", "MLT_CHAOS_CLOCK", "MLT_TEST_RECOVERS",
    ],
)  # fmt: skip
def test_misspelt__leaves_known_names_and_those_of_other_tools(name: str) -> None:
    assert misspelt([name]) == {}


def test_context__warns_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("MLT_DATAPAHT", "udp")
    with caplog.at_level(logging.WARNING, "mlt"):
        for _ in range(2):
            mlt.Context(0, 1).close()
    (record,) = [one for one in caplog.records if "MLT_DATAPAHT" in one.getMessage()]
    assert_names(record.getMessage(), "MLT_DATAPAHT", "no effect", "MLT_DATAPATH")


def test_context__a_wrong_variable_is_named_beside_a_misspelt_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The misspelt one may be why this one is wrong."""
    monkeypatch.setenv("MLT_RENDEZVOUS_PROT", "29700")
    program = "import mlt; mlt.Context(0, 2)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert_names(done.stderr, "MLT_RENDEZVOUS_PROT", "MLT_RENDEZVOUS_PORT", "ConfigError")


def test_doctor__names_it() -> None:
    (finding,) = doctor._variables({"MLT_PATH": "2"})
    assert finding.level == "problem"
    assert_names(finding.what, "MLT_PATH has no effect", "MLT_PATHS")
