"""Output files of every command: refused before the work if they cannot be written, and written whole or not at all."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from command_tree import all_commands
from typer.main import get_command

from mlt.cli import style
from mlt.cli.help_text import value_name
from mlt.cli.output_option import OutputOption
from mlt.cli.root import app

ROOT = Path(__file__).resolve().parents[3]
MLT = [sys.executable, "-m", "mlt"]
CLUSTER = str(ROOT / "examples" / "planners" / "testbed.yaml")
POLICY = str(ROOT / "examples" / "switch" / "paper-testbed.yaml")
LAYERS = str(ROOT / "examples" / "switch" / "vgg16.layers.json")
DERIVE = ("--layers", LAYERS, "--buffer", "16MB", "--rate", "10gbit", "--ports", "1")

# Commands, with their output option last.
FILES: list[tuple[str, ...]] = [
    ("doctor", "--json"),
    ("perf", "--local", "--size", "1KiB", "--rounds", "2", "--json"),
    ("plan", "assign", CLUSTER, "--output"),
    ("plan", "aggregate", CLUSTER, "--output"),
    ("plan", "route", CLUSTER, "--output"),
    ("plan", "route", CLUSTER, "--srv6"),
    ("plan", "auto", CLUSTER, "vgg19", "--output"),
    ("plan", "topology", "build", "fat-tree", "4", "--output"),
    ("plan", "topology", "build", "leaf-spine", "2", "2", "2", "--output"),
    ("plan", "topology", "build", "psnet", "2", "--output"),
    ("plan", "topology", "circuits", CLUSTER, "--output"),
    ("plan", "topology", "place", CLUSTER, "--job", "a=1,1,1MB", "--output"),
    ("plan", "topology", "grow", CLUSTER, "--output"),
    ("switch", "policy", *DERIVE, "--output"),
    ("switch", "verify", POLICY, "--target", "eos", "--input", "/dev/null", "--json"),
    ("testbed", "status", "--json"),
]
PICTURES: list[tuple[str, ...]] = [
    ("perf", "--local", "--plot"),
    ("plan", "show", CLUSTER, "PLAN", "--plot"),
]
FOLDERS: list[tuple[str, ...]] = [
    ("switch", "generate", POLICY, "--target", "eos", "--output"),
    ("switch", "rollback", POLICY, "--target", "eos", "--output"),
    ("demo", "--output"),
]


def run(*words: str, cwd: Path, **more: Any) -> subprocess.CompletedProcess[str]:
    own = {name: value for name, value in os.environ.items() if not name.startswith("MLT_") and name != "RANK"}
    environ = {**own, "COLUMNS": "300", "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [*MLT, *words], env=environ, cwd=cwd, capture_output=True, text=True, timeout=120, check=False, **more
    )


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory of a member of no job."""
    for name in [one for one in os.environ if one.startswith("MLT_") or one == "RANK"]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _require(words: tuple[str, ...]) -> None:
    for needed in ({"plan": ["highspy"], "demo": ["torch", "matplotlib"]}).get(words[0], []):
        pytest.importorskip(needed)


def error_of(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> str:
    """Standard error of a command that is refused before it prints anything."""
    with pytest.raises(SystemExit) as ended:
        style.run(get_command(app), list(words), "mlt")
    out, err = capsys.readouterr()
    assert ended.value.code == 2, err
    assert out == ""
    assert "Traceback" not in err
    return err


def test_table__has_every_output_option() -> None:
    found = {
        (*ctx.obj.split(), max(param.opts, key=len))
        for command, ctx in all_commands()
        for param in command.params
        if not {"--input", "--before", "--recorder"} & {*param.opts}  # they are read
        and (value_name(param) in ("FILE|-", "FOLDER") or param.name in ("draw", "plot"))
    }
    table = [*FILES, *PICTURES, *FOLDERS]
    assert {one for one in found for words in table if (*words[: len(one) - 1], words[-1]) == one} == found
    assert len(table) == len(found)


def refused_before_work(
    words: tuple[str, ...], output: str, cause: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(folder.rglob("*"))
    assert f"{output}: cannot be written: {cause}" in error_of((*words, output), capsys)
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize("words", [*FILES, *PICTURES], ids=" ".join)
def test_file__a_place_that_cannot_be_written_is_refused(
    words: tuple[str, ...], here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _require(words)
    (here / "folder.png").mkdir()
    (here / "file").touch()
    refused_before_work(words, "folder.png", "it is a folder", here, capsys)
    refused_before_work(words, "file/out.png", "Not a directory", here, capsys)
    refused_before_work(words, "missing/out.png", "No such file or directory", here, capsys)
    refused_before_work(words, "/proc/out.png", "No such file or directory", here, capsys)


@pytest.mark.parametrize("words", PICTURES, ids=" ".join)
def test_picture__an_unknown_format_is_refused(
    words: tuple[str, ...], here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _require(words)
    cause = "the format .nope is unknown; use .png, .svg or .pdf"
    refused_before_work(words, "out.nope", cause, here, capsys)
    refused_before_work(words, "out", "its name has no suffix", here, capsys)
    refused_before_work(words, "-", "a picture cannot go to standard output", here, capsys)


@pytest.mark.parametrize("words", FOLDERS, ids=" ".join)
def test_folder__that_cannot_be_written_is_refused(
    words: tuple[str, ...], here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _require(words)
    (here / "file").touch()
    refused_before_work(words, "file", "it is a file", here, capsys)
    refused_before_work(words, "-", "several files cannot go to standard output", here, capsys)
    refused_before_work(words, "/proc/no", "No such file or directory", here, capsys)


@pytest.mark.parametrize("words", [*FILES, *PICTURES, *FOLDERS], ids=" ".join)
def test_output__an_empty_name_is_refused(
    words: tuple[str, ...], here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _require(words)
    for given in ((*words, ""), (*words[:-1], f"{words[-1]}=")):
        assert f"error: {words[-1]} is empty: give a value, or leave it out" in error_of(given, capsys)
    assert list(here.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (("doctor", ""), "HOST"),
        (("perf", ""), "HOST"),
        (("doctor", "--switch", ""), "--switch"),
        (("plan", "check", ""), "FILE"),
        (("plan", "assign", CLUSTER, "--job="), "--job"),
        (("switch", "check", POLICY, "-t", ""), "--target"),
        (("testbed", "down", "--name="), "--name"),
        (("testbed", "exec", "", "--", "true"), "HOST"),
    ],
)
@pytest.mark.usefixtures("here")
def test_empty_value__is_refused(words: tuple[str, ...], name: str, capsys: pytest.CaptureFixture[str]) -> None:
    _require(words)
    assert f"error: {name} is empty" in error_of(words, capsys)


def test_empty_value__of_another_program_is_its_own(tmp_path: Path) -> None:
    code = "import sys; sys.exit(sys.argv[1:] != ['', '--x='])"
    done = run("launch", "-n", "1", sys.executable, "-c", code, "", "--x=", cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def _no_more_than_64_bytes() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64))


@pytest.mark.parametrize(
    ("words", "old"),
    [
        (("doctor", "--json", "out"), "old"),
        (("plan", "topology", "build", "fat-tree", "4", "-o", "out"), "old"),
        (("switch", "generate", POLICY, "-t", "eos", "-o", "."), "old"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_write__that_fails_leaves_the_old_file(words: tuple[str, ...], old: str, tmp_path: Path) -> None:
    assert run(*words, cwd=tmp_path).returncode in (0, 1)
    names = sorted(one.name for one in tmp_path.iterdir())
    for name in names:
        (tmp_path / name).write_text(old)
    done = run(*words, cwd=tmp_path, preexec_fn=_no_more_than_64_bytes)
    assert done.returncode == 1, done.stderr
    assert "File too large" in done.stderr
    assert "Traceback" not in done.stderr
    assert sorted(one.name for one in tmp_path.iterdir()) == names
    assert {(tmp_path / name).read_text() for name in names} == {old}


@pytest.mark.usefixtures("here")
def test_plan__standard_output_is_of_one_file(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("highspy")
    error = error_of(("plan", "route", CLUSTER, "-o", "-", "--srv6", "-"), capsys)
    assert "'--srv6': standard output is --output's; name a file" in error.replace("--srv6: ", "'--srv6': ")


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("option", ["--json", "--plot"])
def test_perf__a_server_has_no_results_to_write(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    error = error_of(("perf", "--serve", option, "out.png"), capsys)
    assert f"--serve and {option}: give one of them" in error


def test_doctor__json_on_standard_output_is_json(tmp_path: Path) -> None:
    assert json.loads(run("doctor", "--json", "-", cwd=tmp_path).stdout)


def test_option__reads_dash_as_standard_output() -> None:
    assert str(OutputOption().read("-")) == "-"
