"""The testbed of a command without a name: this user's own and only one, never another's experiment."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from checks import assert_names
from click.testing import CliRunner

from mlt.cli.testbed import app
from mlt.testbed import Testbed, TestbedError, cleanup, requirements, state
from mlt.testbed.bed import VARIABLE
from mlt.testbed.state import State

ACTS = (["set", "--loss", "1%"], ["exec", "host0", "--", "true"], ["status"], ["down"])


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "ROOT_DIRECTORY", tmp_path / "mlt-testbed")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    for variable in ("SUDO_UID", VARIABLE):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(requirements, "is_privileged", lambda: True)


def made(name: str, *, runs: bool = False, user: int | None = None) -> None:
    """A state file alone: nothing that a command may act on."""
    owner = state.owner() if runs else None
    state.create(
        State(name=name, owner=owner, topology={"hosts": 1}, namespaces={}, user=state.user() if user is None else user)
    )


def refused(words: list[str]) -> str:
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 1, done.output
    return done.output


@pytest.mark.parametrize("words", ACTS, ids=lambda words: words[0])
def test_without_a_name__anothers_testbed_is_refused_and_named(words: list[str]) -> None:
    made("run-77", runs=True)
    assert_names(refused(words), "run-77", f"of process {os.getpid()}", "mlt testbed up")
    made("hers", user=4_321)
    assert_names(refused(words), "run-77", "hers (of user 4321)")
    assert {found.name for found in state.all_states()} == {"run-77", "hers"}


@pytest.mark.parametrize("words", ACTS, ids=lambda words: words[0])
def test_without_a_name__one_of_two_own_is_refused(words: list[str]) -> None:
    made("bed")
    made("second")
    assert_names(refused(words), "2 testbeds are yours", "bed (yours)", "second (yours)")
    assert {found.name for found in state.all_states()} == {"bed", "second"}


@pytest.mark.parametrize("words", ACTS, ids=lambda words: words[0])
def test_without_a_name__none(words: list[str]) -> None:
    assert "mlt testbed up" in refused(words)


def test_only_own__is_the_one_of_this_user_beside_others(monkeypatch: pytest.MonkeyPatch) -> None:
    made("run-77", runs=True)
    made("hers", user=4_321)
    made("mine")
    assert state.only_own().name == "mine"
    if os.geteuid() == 0:
        monkeypatch.setenv("SUDO_UID", "4321")
        assert state.only_own().name == "hers"


def test_without_a_name__the_own_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    made("mine")
    made("run-77", runs=True)
    attached: list[str] = []

    def attach(name: str) -> Any:
        attached.append(name)
        raise TestbedError("far enough")

    monkeypatch.setattr(Testbed, "attach", attach)
    for words in ACTS[:3]:
        assert "testbed 'mine'" in refused(words)
    # Inside a testbed, its own.
    monkeypatch.setenv(VARIABLE, "run-77")
    refused(ACTS[0])
    assert attached == ["mine"] * 3 + ["run-77"]


def test_down__without_a_name_removes_the_own(monkeypatch: pytest.MonkeyPatch) -> None:
    made("mine")
    made("run-77", runs=True)
    removed: list[str] = []
    monkeypatch.setattr(cleanup, "remove", removed.append)
    assert CliRunner().invoke(app, ["down"]).output == "removed mine\n"
    assert removed == ["mine"]


def test_down__a_name_beside_all_is_refused() -> None:
    made("mine")
    done = CliRunner().invoke(app, ["down", "--name", "mine", "--all"])
    assert done.exit_code == 2
    assert_names(done.output, "mine", "--all")
    assert state.all_states()
