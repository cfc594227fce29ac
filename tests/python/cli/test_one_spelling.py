"""One thing has one name in all commands: options, arguments, and the heads of lines on standard error."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from checks import assert_names
from command_tree import all_commands
from typer.main import get_command

import mlt
from mlt.cli import style
from mlt.cli.help_text import argument_name
from mlt.cli.main import COMMANDS
from mlt.cli.root import app

PACKAGE = Path(mlt.__file__).parent
# An option of the name on the left was, in some command, what the others call as on the right.
OTHERWISE_CALLED = {
    "--bandwidth": "--rate",
    "--bound": "--loss-bound",
    "--buffer-bytes": "--buffer",
    "--count": "--workers, --hosts or --ranks",
    "--draw": "--plot",
    "--file": "--input or --output",
    "--from-model": "--layers",
    "--granularity-bytes": "--granularity",
    "--iface": "--interface",
    "--link-rate": "--rate",
    "--out": "--output",
    "--seconds": "--for, --timeout or --time-limit",
    "--testbed": "--name",
}
# Arguments with the name of another command's option: what the command is about.
SUBJECTS = {("plan auto", "JOB"), ("switch facts", "TARGET"), ("doctor", "HOST"), ("perf", "HOST"),
            ("testbed exec", "HOST"), ("switch apply", "SWITCH"),
            *(("plan topology build leaf-spine", name) for name in ("LEAVES", "SPINES"))}  # fmt: skip
REPORTING = ("cli", "demo", "perf", "switch_push", "testbed")  # packages that write to standard error
HEAD = re.compile(rf"(mlt )?({'|'.join(COMMANDS)})( \w+)?: ")


def test_options__no_synonyms() -> None:
    for command, ctx in all_commands():
        names = {name for param in command.params for name in param.opts}
        assert not names & OTHERWISE_CALLED.keys(), (ctx.command_path, OTHERWISE_CALLED)


def test_options__one_help_is_one_option() -> None:
    found = defaultdict(set)
    for command, ctx in all_commands():
        for param in command.get_params(ctx):
            if param.param_type_name == "option" and not param.hidden:
                found[param.help].add(max(param.opts, key=len))
    assert [names for names in found.values() if len(names) > 1] == []


def test_arguments__are_no_options_elsewhere() -> None:
    options = {name for command, _ in all_commands() for param in command.params for name in param.opts}
    also = {
        (ctx.obj, re.split(r"[\[.:]", argument_name(param).strip("[]"))[0])
        for command, ctx in all_commands()
        for param in command.params
        if param.param_type_name == "argument"
    }
    also = {(path, name) for path, name in also if f"--{name.lower().replace('_', '-')}" in options}
    # Files that a command reads are arguments of the planners and of mlt switch, whose options name further ones.
    assert {one for one in also if one[1] not in ("POLICY", "CLUSTER", "PLAN")} <= SUBJECTS


@pytest.mark.parametrize("path", [ctx.obj for _, ctx in all_commands()])
def test_errors__of_every_command_begin_with_error(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        style.run(get_command(app), [*path.split(), "--no-such-option"], "mlt")
    out, err = capsys.readouterr()
    assert (ended.value.code, out) == (2, "")
    assert_names(err, "\nerror: No such option: --no-such-option")
    assert not [line for line in err.splitlines() if HEAD.match(line)]


def literals(tree: ast.AST) -> Iterator[ast.Constant]:
    """The texts, and the beginnings of those with values in them."""
    inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values[1:]}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
            yield node


def test_heads__errors_have_none_and_reports_their_command() -> None:
    reports = set()
    for file in sorted(PACKAGE.rglob("*.py")):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        raised = {id(one) for node in ast.walk(tree) if isinstance(node, ast.Raise) for one in literals(node)}
        for text in literals(tree):
            where = f"{file.relative_to(PACKAGE)}:{text.lineno}: {text.value}"
            head = HEAD.match(text.value)
            if id(text) in raised:
                assert head is None, where
                assert not text.value.startswith("error: "), where
            elif head is not None and file.relative_to(PACKAGE).parts[0] in REPORTING:
                assert head[1], where
                reports.add(head[2])
            if text.value.startswith("error: "):
                assert file.parts[-2] == "cli", where
    assert {"launch", "perf", "serve", "testbed"} <= reports
