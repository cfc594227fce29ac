"""Options that would be ignored are refused: each with what it needs, and with what it excludes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from command_tree import all_commands
from typer.main import get_command

from mlt.cli import style
from mlt.cli.option_pairs import EXCLUDES, NEEDS
from mlt.cli.root import app

POLICY = str(Path(__file__).resolve().parents[3] / "examples" / "switch" / "paper-testbed.yaml")
# What a command needs beside the options in question.
FIRST = {
    "plan show": ("cluster.yaml", "plan.json"),
    "plan auto": ("cluster.yaml", "job"),
    "switch apply": (POLICY, "local", "--target", "linux"),
    "switch verify": (POLICY, "--target", "eos"),
}
VALUES = {
    **dict.fromkeys(("--index", "--ranks", "--rounds", "--turns", "--paths"), "2"),
    **dict.fromkeys(("--rate", "--line-rate"), "1gbit"),
    **dict.fromkeys(("--confirm", "--for", "--timeout", "--connect-timeout", "--wait"), "5s"),
    **dict.fromkeys(("--packet-hops", "--rank"), "1"),
    "--port": "1234",
    "--datapath": "udp",
    "--pattern": "p2p",
    "--stop": "eager",
    "--priority": "none",
    "--segment-bytes": "1024",
}
FLAGS = {"--once", "--serve", "--fix", "--partial", "--watch", "--local", "--pin", "--dry-run", "--undo"}


@pytest.fixture(autouse=True)
def _in_no_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [one for one in os.environ if one.startswith("MLT_") or one == "RANK"]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def word(option: str) -> list[str]:
    if not option.startswith("-"):  # an argument
        return ["value"]
    return [option] if option in FLAGS else [option, VALUES.get(option, "value")]


def error_of(path: str, options: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    if path.startswith("plan"):
        pytest.importorskip("highspy")
    with pytest.raises(SystemExit) as ended:
        style.run(get_command(app), [*path.split(), *FIRST.get(path, ()), *options], "mlt")
    out, err = capsys.readouterr()
    assert (ended.value.code, out) == (2, ""), err
    return err


@pytest.mark.parametrize(("path", "option"), [(path, option) for path, needs in NEEDS.items() for option in needs])
def test_option__without_what_it_needs_is_refused(path: str, option: str, capsys: pytest.CaptureFixture[str]) -> None:
    error = error_of(path, word(option), capsys)
    assert f"error: {option} goes with " in error
    assert all(partner in error for partner in NEEDS[path][option])


@pytest.mark.parametrize(
    ("path", "one", "other"), [(path, *pair) for path, pairs in EXCLUDES.items() for pair in pairs]
)
def test_options__that_exclude_one_another_are_refused(
    path: str, one: str, other: str, capsys: pytest.CaptureFixture[str]
) -> None:
    more = ["--switch", "leaf.invalid"] if "--during" in (one, other) else []
    error = error_of(path, [*word(one), *word(other), *more], capsys)
    assert f"error: {one} and {other}: give one of them" in error


def test_tables__name_options_that_exist() -> None:
    commands = {ctx.obj: command for command, ctx in all_commands()}
    for path in (*NEEDS, *EXCLUDES):
        options = {name for param in commands[path].params for name in param.opts}
        named = {*NEEDS.get(path, ()), *(one for pair in EXCLUDES.get(path, ()) for one in pair)}
        named |= {one for partners in NEEDS.get(path, {}).values() for one in partners}
        assert {one for one in named if one.startswith("-")} <= options, path
