"""The help of every command: ``-h`` helps as ``--help`` does, and narrow terminals cut no word."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
from checks import assert_names
from click.testing import CliRunner
from command_tree import all_commands

from mlt.cli.help_text import help_text, short_help
from mlt.cli.main import COMMANDS
from mlt.cli.switch_apply import apply


def test_short_help__of_every_command() -> None:
    found = all_commands()
    assert len(found) > 30  # plan's, switch's, testbed's and topology's among them
    for command, ctx in found:
        names = [name for one in command.get_params(ctx) if one.param_type_name == "option" for name in one.opts]
        assert {"-h", "--help"} <= set(names), ctx.command_path


def test_short_help__of_a_command_that_is_called_without_its_group() -> None:
    # click keeps the help option of the first call: here that is one without a parent.
    assert CliRunner().invoke(apply, ["-h"]).exit_code == 0


@pytest.mark.parametrize("words", [[], ["perf"], ["switch", "policy"], ["plan", "topology", "build", "psnet"]])
def test_short_help__is_printed_by_the_program(words: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mlt", *words, "-h"],
        capture_output=True, text=True, timeout=60, check=False, env={**os.environ, "COLUMNS": "100"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert f"Usage: {' '.join(['mlt', *words])} [OPTIONS]" in done.stdout


@pytest.mark.parametrize("columns", [50, 72])
def test_help_text__cuts_no_word_and_exceeds_no_line(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for command, ctx in all_commands():
        monkeypatch.setenv("COLUMNS", "100")
        words = set(help_text(command, ctx).split())
        monkeypatch.setenv("COLUMNS", str(columns))
        text = help_text(command, ctx)
        assert set(text.split()) <= words, ctx.command_path
        assert "…" not in text
        long = [line.strip() for line in text.splitlines() if len(line) > columns and len(line.split()) > 1]
        # A command to copy keeps its line, which has nothing else.
        assert [line for line in long if not re.fullmatch(r"(\w+: )?mlt [^']+|'mlt [^']+'", line)] == [], (
            ctx.command_path
        )


def test_help_text__is_one_style() -> None:
    headings = {line for one in all_commands() for line in help_text(*one).splitlines() if re.match(r"\S.*:$", line)}
    assert headings == {"Arguments:", "Options:", "Commands:"}
    for command, ctx in all_commands():
        assert command.help, ctx.command_path
        assert short_help(command)[0].isupper() or command.help.startswith("mlt: "), ctx.command_path
        for param in command.get_params(ctx):
            if param.param_type_name == "option" and not param.hidden:
                assert param.help, (ctx.command_path, param.name)
                assert param.help.endswith((".", "]", ")")), (ctx.command_path, param.name)


def test_help_text__shows_values_defaults_ranges_and_variables() -> None:
    found = {ctx.command_path.split()[-1]: help_text(command, ctx) for command, ctx in all_commands()}
    assert_names(
        found["perf"], "--stop patient|eager", "--timeout TIME", "[default: 60 s]", "--segment-bytes SIZE",
        "1 to 65535", "MLT_INTERFACE", "[HOST[:PORT]]",
    )  # fmt: skip
    assert_names(found["serve"], "variable: WORLD_SIZE", "workers need the same, and have 0 by default")
    assert_names(found["policy"], "--rate RATE", "required")
    assert_names(found["auto"], "CLUSTER JOB")


def test_mlt__alone_says_what_to_try_first() -> None:
    done = subprocess.run([sys.executable, "-m", "mlt"], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0
    assert_names(done.stdout, "mlt doctor", "mlt perf --local", "mlt launch", "mlt testbed run", "mlt demo", "mlt -h")
    tried = re.findall(r"^  mlt (\w+)", done.stdout, re.MULTILINE)
    assert set(tried) <= set(COMMANDS)
    for columns in (50, 80):
        narrow = subprocess.run(
            [sys.executable, "-m", "mlt"], env={**os.environ, "COLUMNS": str(columns)},
            capture_output=True, text=True, timeout=60, check=True,
        )  # fmt: skip
        assert max(map(len, narrow.stdout.splitlines())) <= columns
        assert set(narrow.stdout.split()) == set(done.stdout.split())
