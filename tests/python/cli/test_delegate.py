"""Handing over to a command of another library: arguments, help, errors and exit codes survive."""

from __future__ import annotations

import sys
import types

import click
import pytest
import typer
from click.testing import CliRunner, Result

from mlt.cli.delegate import Delegate


def typer_app() -> typer.Typer:
    app = typer.Typer()

    @app.command()
    def add(a: int, b: int = 1) -> None:
        """Add two numbers."""
        typer.echo(f"sum {a + b}")

    return app


def click_app() -> click.Command:
    @click.command()
    @click.argument("a", type=int)
    @click.option("--b", type=int, default=1)
    def add(a: int, b: int) -> None:
        """Add two numbers."""
        click.echo(f"sum {a + b}")

    return add


@pytest.fixture(params=[typer_app, click_app])
def group(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> click.Group:
    module = types.ModuleType("mlt_test_delegate_target")
    module.app = request.param()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return click.Group("outer", commands=[Delegate("add", module=module.__name__, short_help="Adds.")])


def run(group: click.Group, *arguments: str) -> Result:
    return CliRunner().invoke(group, list(arguments))


def test_delegate__passes_arguments_and_options(group: click.Group) -> None:
    result = run(group, "add", "4", "--b", "5")
    assert (result.exit_code, result.output.strip()) == (0, "sum 9")


def test_delegate__help_is_the_other_commands_own(group: click.Group) -> None:
    result = run(group, "add", "--help")
    assert result.exit_code == 0
    assert "Add two numbers." in result.output
    assert "--b" in result.output


def test_delegate__bad_argument_is_a_usage_error_not_a_traceback(group: click.Group) -> None:
    result = run(group, "add", "four")
    assert result.exit_code == 2
    assert isinstance(result.exception, SystemExit)


def test_delegate__is_listed_without_importing_its_module() -> None:
    outer = click.Group("outer", commands=[Delegate("later", module="mlt_no_such_module", short_help="Comes later.")])
    result = run(outer, "--help")
    assert result.exit_code == 0
    assert "Comes later." in result.output
