"""How commands end: exit statuses, errors in one form, and output that nobody reads."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import click
import pytest
import typer
from typer.main import get_command

from mlt.cli.main import main
from mlt.cli.style import App, Command, run

ROOT = Path(__file__).resolve().parents[3]
MLT = [sys.executable, "-m", "mlt"]
CLUSTER = str(ROOT / "examples" / "planners" / "testbed.yaml")
POLICY = str(ROOT / "examples" / "switch" / "paper-testbed.yaml")


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


@pytest.mark.parametrize(
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
        ("plan", "assign", CLUSTER),
        ("testbed", "schema"),
        ("completion", "bash"),
    ],
)
def test_output__that_nobody_reads_ends_quietly(words: tuple[str, ...]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [*MLT, *words], stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60, check=False
    )  # fmt: skip
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")
