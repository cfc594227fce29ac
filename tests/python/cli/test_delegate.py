"""Handing over to a command of another module: arguments, help, errors and exit codes survive."""

from __future__ import annotations

import sys
import types
from typing import Any

import pytest
import typer
from typer.core import TyperGroup
from typer.main import get_command
from typer.testing import CliRunner

from mlt.cli.delegate import Delegate


def typer_target() -> Any:
    app = typer.Typer()

    @app.command()
    def add(a: int, b: int = 1) -> None:
        """Add two numbers."""
        typer.echo(f"sum {a + b}")

    return app


def click_target() -> Any:
    click = pytest.importorskip("click")

    @click.command()
    @click.argument("a", type=int)
    @click.option("--b", type=int, default=1)
    def add(a: int, b: int) -> None:
        """Add two numbers."""
        print(f"sum {a + b}")

    return add


def outer(module: str) -> typer.Typer:
    class Group(TyperGroup):
        def list_commands(self, ctx: Any) -> list[str]:
            return ["add"]

        def get_command(self, ctx: Any, cmd_name: str) -> Any:
            return Delegate("add", module=module, short_help="Adds.") if cmd_name == "add" else None

    app = typer.Typer(cls=Group, add_completion=False, rich_markup_mode=None)

    @app.callback()
    def _outer() -> None:
        """Outer."""

    return app


@pytest.fixture(params=[typer_target, click_target])
def app(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> typer.Typer:
    module = types.ModuleType("mlt_test_delegate_target")
    module.app = request.param()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return outer(module.__name__)


def run(app: typer.Typer, *arguments: str) -> Any:
    return CliRunner().invoke(app, list(arguments))


def test_delegate__passes_arguments_and_options(app: typer.Typer) -> None:
    result = run(app, "add", "4", "--b", "5")
    assert (result.exit_code, result.output.strip()) == (0, "sum 9")


def test_delegate__help_is_the_other_commands_own(app: typer.Typer) -> None:
    result = run(app, "add", "--help")
    assert result.exit_code == 0
    assert "Add two numbers." in result.output
    assert "--b" in result.output


def test_delegate__bad_argument_is_a_usage_error_not_a_traceback(app: typer.Typer) -> None:
    result = run(app, "add", "four")
    assert result.exit_code == 2
    assert isinstance(result.exception, SystemExit)


def test_delegate__is_listed_without_importing_its_module() -> None:
    result = run(outer("mlt_no_such_module"), "--help")
    assert result.exit_code == 0
    assert "Adds." in result.output
    assert get_command(outer("mlt_no_such_module")) is not None
