"""Code shared by all commands: the classes that give them one style of help, and errors in one form."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from contextvars import ContextVar
from pathlib import Path
from typing import Any, NoReturn, TextIO, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

from mlt._shared.field_errors import expectation
from mlt._shared.json_lines import shown as printable
from mlt._shared.os_errors import cause_of
from mlt._shared.output_files import WriteFailedError, write_text
from mlt._shared.similar_names import did_you_mean, nearest
from mlt.cli.ending import FAILED, USAGE, finish, interrupted
from mlt.cli.help_text import HelpMixin, argument_name, choices_of, form, number_expected, running, short_help
from mlt.cli.layout import rows
from mlt.cli.option_names import options_in, with_options
from mlt.errors import ErrorCode, MltError
from mlt.switch_configs.errors import PolicyError, TargetError

F = TypeVar("F", bound=Callable[..., Any])
_QUOTES = ("'", '"')
CONTEXT = {"help_option_names": ["-h", "--help"]}


class AppCommand(HelpMixin, TyperCommand):
    """A command of typer's."""


class AppGroup(HelpMixin, TyperGroup):
    """A group of typer's."""


class App(typer.Typer):
    """An app of typer's.

    Tracebacks show no locals: older typer does so by default, and the job secret is among them. Without rich's help
    pages: they cut words in narrow terminals, and would import every command to list it.
    """

    def __init__(self, *, cls: type[TyperGroup] = AppGroup, context: dict[str, Any] | None = None, **more: Any) -> None:
        super().__init__(
            cls=cls,
            add_completion=False,
            pretty_exceptions_show_locals=False,
            rich_markup_mode=None,
            context_settings={**CONTEXT, **(context or {})},
            **more,
        )

    def command(self, name: str | None = None, **more: Any) -> Callable[[F], F]:
        return super().command(name, **{"cls": AppCommand, **more})


def run(command: Any, args: list[str], path: str) -> NoReturn:
    """Run a command of either library to its end; exit with its status."""
    finish(lambda: _run(command, args, path))


def _run(command: Any, args: list[str], path: str) -> object:
    try:
        return command.main(args=args, prog_name=path, standalone_mode=False)
    except SystemExit:
        # The libraries turn a closed pipe into this and a stream of theirs.
        if type(sys.stdout).__name__.endswith("PacifyFlushWrapper"):
            raise BrokenPipeError from None
        raise
    except BrokenPipeError:
        raise
    except OSError as error:
        show_error(error)
        return status_of(error)
    except Exception as error:
        if not hasattr(error, "format_message"):
            if type(error).__name__ == "Abort":
                return interrupted(error.__cause__)
            raise
        _show(error)
        return USAGE if getattr(error, "exit_code", USAGE) == USAGE else FAILED


def status_of(error: Exception) -> int:
    """2 if what the caller gave is wrong (options, variables, input files), else 1."""
    if isinstance(error, MltError):
        return USAGE if error.code is ErrorCode.CONFIG else FAILED
    if isinstance(error, WriteFailedError):
        return FAILED
    if isinstance(error, OSError):
        return USAGE if error.filename is not None else FAILED  # a file that an option names, or a device
    return USAGE if isinstance(error, PolicyError | TargetError | ValueError) else FAILED


def is_stdout(path: Path | None) -> bool:
    """Whether an output file is standard output, which then has nothing else."""
    return path is not None and str(path) == "-"


_STDOUT: ContextVar[TextIO | None] = ContextVar("stdout", default=None)


@contextmanager
def text_beside(path: Path | None) -> Iterator[None]:
    """Within this, printed text goes to standard error if ``path`` is standard output, which gets the file only."""
    if not is_stdout(path):
        yield
        return
    token = _STDOUT.set(sys.stdout)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        _STDOUT.reset(token)


def write_output(path: Path, text: str) -> None:
    """Write the file that an option names; "-" is standard output. Raises WriteFailedError."""
    if is_stdout(path):
        (_STDOUT.get() or sys.stdout).write(text)
        return
    write_text(path, text)
    typer.echo(f"written to {path}")


def write_json(path: Path, value: object) -> None:
    """Write the file of --json; "-" is standard output. Raises WriteFailedError."""
    text = json.dumps(value, indent=1) + "\n"
    if is_stdout(path):
        sys.stdout.write(text)
    else:
        write_text(path, text)


def _show(error: Any) -> None:
    """An error in the arguments, with the usage of the command that has it."""
    ctx = getattr(error, "ctx", None)
    if type(error).__name__ == "NoArgsIsHelpError" and ctx is not None:
        print(ctx.get_help(), file=sys.stderr)
        return
    if ctx is not None:
        print(f"{ctx.get_usage()}\nTry '{ctx.command_path} -h' for help.\n", file=sys.stderr)
    if (text := _own_words(error)) is not None:
        error.message = text
    if ctx is not None and getattr(error, "option_name", None) and hasattr(error, "possibilities"):
        names = [name for one in ctx.command.params for name in (*one.opts, *one.secondary_opts)]
        short = error.option_name[1:]
        is_short = error.option_name.startswith("--") and short in names
        error.possibilities = (
            [short] if is_short else nearest(error.option_name, [name for name in names if name.startswith("--")])
        )
        meant = f". Did you mean {' or '.join(error.possibilities)}?" if error.possibilities else ""
        error.message, error.possibilities = f"No such option: {error.option_name}{meant}", None
    param = getattr(error, "param", None)
    # The choices of an argument are in its right form.
    message = _shaped(error, param).partition(" Choose from:")[0]
    wrong = re.search(r"'([^']*)' is not one of ", message)
    meant = did_you_mean(wrong[1], choices_of(param), before=" ") if wrong and param is not None else ""
    print(f"error: {message}{meant.replace('did', 'Did', 1)}", file=sys.stderr)
    _show_forms(message, ctx, param)


def _shaped(error: Any, param: Any) -> str:
    """The error's text, which begins with the option or argument that it is about: ``--rate 'fast': expected ...``."""
    if param is None or not hasattr(error, "param_hint") or not hasattr(param, "opts"):
        return str(error.format_message())
    is_argument = getattr(param, "param_type_name", "") == "argument"
    name = argument_name(param).strip("[].") if is_argument else max(param.opts, key=len)
    if hasattr(error, "param_type"):
        return f"{name} is missing"
    text = str(error.message)
    has_value = text.startswith(_QUOTES) and re.match(r"(['\"]).*?\1: ", text, re.DOTALL)
    return f"{name} {text}" if has_value else f"{name}: {text}"


def show_error(error: Exception) -> None:
    """An error that a command finds itself; one about the command line names the options and shows their right form."""
    show_problem(printable(cause_of(error)), is_usage=status_of(error) == USAGE)


def show_problem(text: str, *, is_usage: bool) -> None:
    """``show_error`` of a text."""
    ctx = running.get(None)
    if not is_usage or ctx is None:
        print(f"error: {text}", file=sys.stderr)
        return
    text = with_options(text, ctx)
    print(f"error: {text}", file=sys.stderr)
    _show_forms(text, ctx)


def _show_forms(message: str, ctx: Any, param: Any = None) -> None:
    """Print how to write what an error is about, to standard error."""
    if ctx is None:
        return
    forms = forms_of(message, ctx.command, param)
    if not forms and message.startswith("No such command ") and hasattr(ctx.command, "list_commands"):
        forms = rows("Right form", _members_like(message.split("'")[1], ctx))
    whole = " ".join(ctx.get_usage().removeprefix("Usage: ").split())
    if not forms and message.startswith("No such option"):
        forms = rows("Right form", [(whole, f"options: {ctx.command_path} -h")])
    elif getattr(param, "param_type_name", "") == "argument" and not getattr(param, "help", None):
        return  # its name alone says nothing, and the usage is above
    if forms:
        print(f"\n{forms}", file=sys.stderr)


def _members_like(name: str, ctx: Any) -> list[tuple[str, str]]:
    """The commands of a group that ``name`` may mean; all of them if it is like none."""
    members = list(ctx.command.list_commands(ctx))
    found = ((one, ctx.command.get_command(ctx, one)) for one in nearest(name, members) or members)
    return [(one, short_help(command)) for one, command in found if command is not None and not command.hidden]


def _own_words(error: Any) -> str | None:
    """The value that was expected, where a library says so in words of its own."""
    param = getattr(error, "param", None)
    expected = None if param is None else number_expected(param)
    problems = getattr(error.__cause__, "errors", None)
    if problems is not None:
        (problem, *_) = problems()
        text = expectation(problem)
        return text if problem["type"] == "value_error" else f"{problem['input']!r}: {expected or text}"
    # Click 8.1.0 says "executable" of a file that cannot be read; no file here has to be executable.
    unreadable = re.fullmatch(
        r"[Pp]ath ('.*') is not (?:readable|executable)\.", str(getattr(error, "message", "")), re.DOTALL
    )
    if unreadable is not None:
        return f"{unreadable[1]}: cannot be read: Permission denied"
    # Click begins with the value, as it was written or as the number that it is.
    given = re.match(r"(.*?) is not (?:a valid|in the range)", str(getattr(error, "message", "")), re.DOTALL)
    if given is None or expected is None:
        return None
    return f"{given[1] if given[1].startswith(_QUOTES) else repr(given[1])}: {expected}"


def forms_of(message: str, command: Any, param: Any = None) -> str:
    """The written forms of the options that an error names, with their help; or of the argument that it is about."""
    found = options_in(message, command)
    if not found and param is not None:
        found = [one for one in command.params if one.name == getattr(param, "name", None)]
    return rows("Right form", [form(one) for one in found])
