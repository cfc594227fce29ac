"""The attacks of tools/attacks: each speaks the job's version, names its aim, and fails where it does not reach it."""

from __future__ import annotations

import runpy
import struct
from typing import Any

import pytest
from testbed_lab import ROOT

_core = pytest.importorskip("mlt._core")


@pytest.fixture(scope="module")
def attacks() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "tools" / "attacks" / "__main__.py"), run_name="attacks")


@pytest.fixture(scope="module")
def attacker() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "tools" / "attacks" / "attacker.py"), run_name="attacker")


def test_attacks__each_names_what_it_aims_at(attacks: dict[str, Any]) -> None:
    expected = {("running", name) for name in attacks["RUNNING"]} | {
        ("at the start", name) for name in attacks["AT_START"]
    }
    assert set(attacks["AIMS"]) == expected
    assert all(attacks["AIMS"].values())


@pytest.mark.parametrize(
    ("name", "rises", "faults"),
    [
        ("ask-control", {"control_unproved": 1, "control_other_version": 1, "control_malformed": 1}, 0),
        ("ask-control", {"control_other_version": 327, "control_malformed": 110}, 1),
        ("flood-16", {"drop_bad_version": 230_455}, 1),
        ("join-with-a-guess", {}, 1),
        ("icmp", {"kernel_icmp_errors": 101}, 0),
        ("icmp", {"kernel_icmp_errors": 100}, 1),
    ],
)
def test_attacks__one_that_did_not_reach_its_aim_is_a_failure(
    attacks: dict[str, Any], name: str, rises: dict[str, int], faults: int
) -> None:
    result = attacks["Result"](name, "running", tried=100)
    attacks["reach"](result, rises)
    assert len(result.faults) == faults


def test_attacker__speaks_the_version_of_the_job(attacker: dict[str, Any]) -> None:
    assert struct.unpack_from("<H", attacker["opening"](bytes(32)), 12)[0] == _core.PROTOCOL_VERSION
    assert struct.unpack_from("<H", attacker["hello"](0, 2, 0, 1), 4)[0] == _core.PROTOCOL_VERSION
