"""Every ``mlt`` command of the documents exists, with the options that it is given there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_tree import all_commands

ROOT = Path(__file__).resolve().parents[3]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("examples/**/*.md")])
# What ends a command in a line of shell; behind " -- " another program's words begin.
_END = re.compile(r"\s--\s|\s--$|[|;&>)`'\"]")


def options_of_commands() -> dict[str, set[str]]:
    """The path of a command, such as "plan route" -> its options."""
    found: dict[str, set[str]] = {}
    for command, ctx in all_commands():
        named = {one for param in command.params for one in (*param.opts, *param.secondary_opts)}
        found[ctx.obj] = named | set(command.get_help_option_names(ctx))
    return found


OPTIONS = options_of_commands()


def code_of(text: str) -> Iterator[str]:
    """Inline code, and the lines of code blocks, of which one that ends with a backslash continues in the next."""
    blocks = re.findall(r"^( *)```\w*\n(.*?)^\1```", text, re.MULTILINE | re.DOTALL)
    for _, block in blocks:
        yield from (line.partition(" # ")[0] for line in re.sub(r"\\\n\s*", " ", block).splitlines())
    rest = re.sub(r"^( *)```.*?^\1```", "", text, flags=re.MULTILINE | re.DOTALL)
    yield from (" ".join(code.split()) for code in re.findall(r"`([^`]+)`", rest))


def wrong_in(code: str) -> Iterator[str]:
    """The errors in the ``mlt`` commands of a line; ``VARIABLE=mlt`` before another program is none."""
    for match in re.finditer(r"(?<![\w/.=-])mlt (?=((?:[a-z]|-)[^`]*))", code):
        given = _END.split(match[1], maxsplit=1)[0]
        words = given.split()
        names = [" ".join(words[:count]) for count in range(len(words), -1, -1)]
        command = next(name for name in names if name in OPTIONS)
        if not command and words and re.fullmatch(r"[a-z]+", words[0]):
            yield f"mlt {given}: no such command"
        for word in words:
            option = word.partition("=")[0]
            if re.fullmatch(r"--[a-z][\w-]*|-[a-z]", option) and option not in OPTIONS[command]:
                yield f"mlt {given}: {command or 'mlt'} has no {option}"


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_documents__commands_and_options_exist(path: Path) -> None:
    assert [wrong for code in code_of(path.read_text(encoding="utf-8")) for wrong in wrong_in(code)] == []


def test_wrong_in__names_command_and_option() -> None:
    assert list(wrong_in("mlt perf --local --nonsense 3 | less --more")) == [
        "mlt perf --local --nonsense 3 : perf has no --nonsense"
    ]
    inner = "mlt testbed run --hosts 2 -- mlt perf --nonsense"
    assert list(wrong_in(inner)) == ["mlt perf --nonsense: perf has no --nonsense"]
    assert list(wrong_in("mlt plam route")) == ["mlt plam route: no such command"]
    assert list(wrong_in("mlt plan route CLUSTER -o plan.json && mlt --version")) == []
    assert {"plan route", "switch apply", "testbed run", ""} <= set(OPTIONS)
