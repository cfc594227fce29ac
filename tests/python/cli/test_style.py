"""The ends of commands: exit statuses, errors in one form, and output that no process reads."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
import pytest
import typer
import warm_commands
from checks import assert_names
from command_tree import all_commands
from rich.console import Group
from rich.table import Table
from typer.main import get_command

from mlt.cli.click_style import Command
from mlt.cli.help_text import choices_of, form, option_names, takes_value, value_name
from mlt.cli.main import main
from mlt.cli.output import Output
from mlt.cli.style import App, run

ROOT = Path(__file__).resolve().parents[3]
MLT = [sys.executable, "-m", "mlt"]
CLUSTER = str(ROOT / "examples" / "planners" / "testbed.yaml")
POLICY = str(ROOT / "examples" / "switch" / "paper-testbed.yaml")


# What commands of mlt plan need beyond a base install.
PLANNERS = pytest.mark.skipif(
    any(find_spec(one) is None for one in ("scipy", "networkx")), reason="the extra plan is not installed"
)


def ended(command: Any, *args: str) -> int | str | None:
    with pytest.raises(SystemExit) as error:
        run(command, list(args), "mlt try")
    return error.value.code


def both(function: Any) -> list[Any]:
    """A command of each library."""
    app = App()
    app.command()(function)
    return [get_command(app), click.command(cls=Command)(function)]


def test_run__statuses(capsys: pytest.CaptureFixture[str]) -> None:
    def three() -> None:
        """Ends with 3."""
        raise SystemExit(3)

    def nothing() -> None:
        """Does nothing."""

    def interrupted() -> None:
        """Is interrupted."""
        raise KeyboardInterrupt

    for function, status in ((three, 3), (nothing, 0), (interrupted, 130)):
        for command in both(function):
            assert ended(command) == status
    for command in both(nothing):
        capsys.readouterr()
        assert ended(command, "--nosuch") == 2
        assert capsys.readouterr().err.startswith("Usage: mlt try [OPTIONS]\nTry 'mlt try -h' for help.\n\nerror: ")


def test_run__failures_of_a_library_end_with_1() -> None:
    @click.command(cls=Command)
    def fails() -> None:
        raise click.ClickException("no")

    assert ended(fails) == 1


def test_run__other_exceptions_stay_as_they_are() -> None:
    def broken() -> None:
        raise ZeroDivisionError

    for command in both(broken):
        with pytest.raises(ZeroDivisionError):
            run(command, [], "mlt try")


def test_app__has_no_locals_in_tracebacks() -> None:
    assert App().pretty_exceptions_show_locals is False
    assert issubclass(App, typer.Typer)


def test_main__is_a_module_too() -> None:
    assert import_module("mlt.__main__").main is main
    done = subprocess.run([*MLT, "--version"], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.startswith("mlt, version ")


PRINTING = pytest.mark.parametrize(
    "words",
    [
        ("-h",),
        ("perf", "-h"),
        ("doctor",),
        ("switch", "schema"),
        ("switch", "targets"),
        ("switch", "check", POLICY, "-t", "linux"),
        ("switch", "verify", POLICY, "-t", "linux"),
        ("plan", "schema", "cluster"),
        ("plan", "check", CLUSTER),
        pytest.param(("plan", "assign", CLUSTER), marks=PLANNERS),
        ("testbed", "schema"),
        ("completion", "bash"),
    ],
)


@PRINTING
def test_output__on_a_full_disk_is_an_error_in_one_line(words: tuple[str, ...]) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run([*MLT, *words], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert (done.returncode, last_line(done)) == (1, f"error: {CANNOT_WRITE}: No space left on device"), done.stderr
    assert "Traceback" not in done.stderr


@PRINTING
def test_output__that_the_caller_closed_is_an_error_in_one_line(words: tuple[str, ...]) -> None:
    closed = ["sh", "-c", 'exec "$@" >&-', "sh", *MLT, *words]
    done = subprocess.run(closed, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert (done.returncode, last_line(done)) == (1, f"error: {CANNOT_WRITE}: Bad file descriptor"), done.stderr
    assert "Traceback" not in done.stderr


def test_streams__that_the_caller_closed_harm_no_command() -> None:
    closed = ["sh", "-c", 'exec "$@" <&- 2>&-', "sh", *MLT, "--version"]
    done = subprocess.run(closed, stdout=subprocess.PIPE, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout.split(",")[0]) == (0, "mlt")


CANNOT_WRITE = "standard output cannot be written"


def last_line(done: subprocess.CompletedProcess[str]) -> str:
    """Notes of the command may precede its error."""
    return done.stderr.splitlines()[-1]


def test_run__errors_of_the_system_name_the_file_and_the_cause(capsys: pytest.CaptureFixture[str]) -> None:
    def reads() -> None:
        """Reads a folder."""
        Path("/").read_text()

    for command in both(reads):
        assert ended(command) == 2
        assert capsys.readouterr().err == "error: /: Is a directory\n"


@PRINTING
def test_output__that_nobody_reads_ends_quietly(words: tuple[str, ...]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [*MLT, *words], stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60, check=False
    )  # fmt: skip
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (("perf", "--local", "--loss-bound", "most"), 2),
        (("perf", "--local", "--json"), 2),
        (("doctor", "node:many"), 2),
        (("switch", "generate", POLICY, "-t", "acme"), 2),
        (("switch", "generate", "/no/file", "-t", "sonic"), 2),
        (("switch", "check", "/no/file"), 2),
        (("plan", "check", "/no/file"), 2),
        pytest.param(("plan", "assign", CLUSTER, "-o", "/no/folder/plan.json"), 2, marks=PLANNERS),
        pytest.param(("plan", "topology", "build", "fat-tree", "3"), 2, marks=PLANNERS),
        (("testbed", "run", "--hosts", "2", "--rate", "fast", "--", "true"), 2),
        (("testbed", "run", "--hosts", "2"), 2),
        (("testbed", "set", "--rate", "1bit"), 2),
        (("testbed", "status", "--name", "nosuch"), 1),
        (("doctor", "no.such.host.invalid"), 1),
        (("perf", "no.such.host.invalid"), 1),
        (("serve",), 2),
    ],
)
def test_status__2_for_wrong_input_and_1_for_failure(words: tuple[str, ...], status: int) -> None:
    done = mlt(*words)
    assert done.returncode == status, done.stderr
    assert "Traceback" not in done.stderr


def mlt(*words: str) -> subprocess.CompletedProcess[str]:
    return warm_commands.run(words, warm_commands.own_environment())


@pytest.mark.parametrize(
    ("words", "key"),
    [
        (("doctor", "--json", "-"), "level"),
        (("perf", "--local", "--size", "1KiB", "--rounds", "2", "--turns", "1", "--json", "-"), "results"),
        pytest.param(("plan", "assign", CLUSTER, "-o", "-"), "jobs", marks=PLANNERS),
    ],
)
def test_json__dash_is_standard_output_and_has_nothing_else(words: tuple[str, ...], key: str) -> None:
    done = mlt(*words)
    found = json.loads(done.stdout)
    assert key in (found[0] if isinstance(found, list) else found)
    assert done.stderr.strip()


@PLANNERS
def test_output__dash_is_standard_output(tmp_path: Path) -> None:
    built = mlt("plan", "topology", "build", "fat-tree", "4", "-o", "-")
    assert "16 hosts" in built.stderr
    file = tmp_path / "net.yaml"
    file.write_text(built.stdout)
    assert "16 hosts" in mlt("plan", "check", str(file)).stdout


def test_json__writes_a_file_and_names_one_that_cannot_be_written(tmp_path: Path) -> None:
    out = tmp_path / "findings.json"
    done = mlt("doctor", "--json", str(out))
    assert {"level", "what", "fix"} <= set(json.loads(out.read_text())[0])
    assert "Linux" in done.stdout
    done = mlt("doctor", "--json", "/no/folder/findings.json")
    assert done.returncode == 2
    assert_names(done.stderr, "--json", "/no/folder/findings.json", "No such file")


def test_options__outputs_are_named_alike() -> None:
    for command, ctx in all_commands():
        for param in command.params:
            assert "--out" not in param.opts, ctx.command_path
            if "-o" in param.opts or "--output" in param.opts:
                assert sorted(param.opts) == ["--output", "-o"], ctx.command_path
                assert param.metavar == ("FOLDER" if "Folder" in param.help else "FILE|-"), ctx.command_path
            if "--json" in param.opts:
                assert param.metavar == "FILE|-", ctx.command_path


def test_usage_errors__show_the_right_form_of_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    tried = 0
    for command, ctx in all_commands():
        for param in command.params:
            if param.param_type_name != "option" or param.hidden or not takes_value(param):
                continue
            tried += 1
            with pytest.raises(SystemExit):
                run(command, [param.opts[0]], ctx.command_path)
            text = " ".join(capsys.readouterr().err.split())
            assert f"error: Option '{param.opts[0]}' requires an argument" in text
            assert f"Right form: {' '.join(option_names(param).split())}" in text, (ctx.command_path, param.name)
    assert tried > 100


def test_usage_errors__show_the_right_form_of_arguments_and_values() -> None:
    assert_names(mlt("plan", "auto").stderr, "error: CLUSTER is missing", "Right form:", "CLUSTER  The cluster file")
    assert_names(mlt("perf", "--stop", "never").stderr, "Right form:", "--stop patient|eager")
    assert_names(mlt("testbed", "run", "--loss", "all").stderr, "'all'", "1%", "Right form:", "--loss LOSS")


def test_usage_errors__end_a_sentence_before_the_next() -> None:
    assert "\nerror: No such option: --los. Did you mean --loss-bound?\n" in mlt("perf", "--los", "1").stderr


@pytest.mark.parametrize(("words", "named"), [(("plan", "check"), "FILE"), (("switch", "check"), "POLICY")])
def test_usage_errors__of_an_unreadable_file_are_one_form(
    words: tuple[str, str],
    named: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / "file.yaml"
    file.write_text("")
    monkeypatch.setattr(os, "access", lambda *_, **__: False)
    with pytest.raises(SystemExit):
        run(get_command(import_module("mlt.cli.root").app), [*words, str(file)], "mlt")
    text = capsys.readouterr().err
    assert f"\nerror: {named} '{file}': cannot be read: Permission denied\n" in text
    assert "\n  mlt switch check" not in text  # the usage again


def values_that_are_wrong(param: Any) -> list[str]:
    """Values that a parameter rejects before anything runs: of another type, no choice, below its range."""
    if choices_of(param):
        return ["@"]
    if value_name(param) not in ("N", "X", "MILLIONS"):
        return []
    minimum = re.search(r"(?:\[|; )(?:min: )?(\d[\d.]*)(?: to [\d.]+)?\]", form(param)[1])
    return ["@"] if minimum is None else ["@", str(float(minimum[1]) - 1).removesuffix(".0")]


def test_usage_errors__have_no_words_of_a_library(capsys: pytest.CaptureFixture[str]) -> None:
    tried = 0
    for command, ctx in all_commands():
        for param in command.params:
            if param.param_type_name != "option" or not takes_value(param):
                continue
            for value in values_that_are_wrong(param):
                tried += 1
                with pytest.raises(SystemExit) as ended_with:
                    run(command, [param.opts[0], value], ctx.command_path)
                text = capsys.readouterr().err
                assert ended_with.value.code == 2, text
                assert_names(text, f"error: {max(param.opts, key=len)}", value)
                words = r"Invalid value for|Value error|Input should|unable to parse|validation error"
                assert not re.search(words, text), text
    assert tried > 30


def test_usage_errors__offer_commands_that_exist() -> None:
    done = mlt("pref")
    assert_names(done.stderr, "'pref'", "Right form:", "perf  Measure")
    assert "demo" not in done.stderr  # not like it
    assert_names(mlt("plan", "nosuch").stderr, "'nosuch'", "aggregate", "assign", "topology")


def test_usage_errors__of_values_together_show_the_right_form_too() -> None:
    assert_names(mlt("perf", "--local", "--loss-bound", "100%").stderr, "100%", "Right form:", "such as 1% or 0.01")
    assert_names(mlt("perf", "--local", "--size", "64Kb").stderr, "'64Kb'", "Right form:", "--size")
    assert_names(mlt("perf", "--local", "--size", "10").stderr, "--size 10", "multiple of 4", "Right form:")
    assert_names(mlt("testbed", "run", "--", "true").stderr, "Right form:", "--hosts N", "--topology FILE")
    assert_names(mlt("plan", "check", "/no/file").stderr, "/no/file")
    assert "Right form" not in mlt("perf", "no.such.host.invalid").stderr  # the command line is fine


@pytest.mark.parametrize(
    ("words", "right"),
    [
        (("testbed", "run", "--hosts", "2", "--rate", "200", "Mbit/s", "--", "true"), "200Mbit/s or '200 Mbit/s'"),
        (("testbed", "set", "host1", "--loss", "1", "%"), "1% or '1 %'"),
        (("perf", "--local", "--rate", "200", "Mbit/s"), "200Mbit/s or '200 Mbit/s'"),
        (("perf", "--local", "--size", "1KiB,64", "KiB"), "1KiB,64KiB or '1KiB,64 KiB'"),
        (("perf", "--timeout", "5", "s", "--local"), "5s or '5 s'"),
    ],
)
def test_usage_errors__of_a_quantity_in_two_words_say_how_to_write_it(words: tuple[str, ...], right: str) -> None:
    done = mlt(*words)
    assert done.returncode == 2
    assert_names(done.stderr, f"write {right}", "Right form:")


def test_usage_errors__words_of_another_program_are_its_own() -> None:
    done = mlt("testbed", "run", "--hosts", "0", "--", "sleep", "--delay", "1", "s")
    assert_names(done.stderr, "--hosts")


def test_tables__cut_no_word_in_a_narrow_terminal() -> None:
    found = {}
    for columns in (50, 150):
        stream = io.StringIO()
        output = Output(file=stream, width=columns)
        table = Table("the alternative", "iteration", "bound by", title="communication")
        table.add_row("all-reduce", "438.4 ms", "the parameter servers' bandwidth, shared by everybody")
        output.print_table(Group(table))
        found[columns] = set(re.sub("[┏┓┗┛┡┩└┘┳┻╇┴━─│┃]", " ", stream.getvalue()).split())
    assert found[50] == found[150]
    assert "servers'" in found[50]
