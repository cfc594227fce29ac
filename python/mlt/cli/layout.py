"""Paragraphs and two columns, with lines broken between words only, at any width.

A number keeps its unit, and a command its line, so that it can be copied: from its first word to the end of the line,
or to the punctuation that ends it. A line may be wider than the terminal for it.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Sequence
from textwrap import TextWrapper

MAX_WIDTH, MIN_WIDTH = 100, 40
_INDENT = 2
_MIN_TEXT = 24
# Stands for the space of "1 %" while lines are broken: rich breaks at every character that is a space, U+00A0 included.
_TIE = "\ue000"
_UNIT = r"(?:%|x|(?:[mun\u00b5])?s|min|h|[kKMGT]?i?B(?:/s)?|[kMGT]?bit(?:/s)?|steps/s|[kMG]?Hz)"
_BEFORE_UNIT = re.compile(rf"(?<=[0-9]) (?={_UNIT}(?![\w/]))")

_COMMANDS = "launch|perf|serve|doctor|testbed|demo|plan|switch|completion"
_OPTION = r"--?[a-z][\w-]*(?:[ =][\d./]\S*)?"
# A command in a sentence: of the shell, at its beginning or after punctuation; in quotes; or mlt's with its options.
_IN_SENTENCE = re.compile(
    r"(?:^|(?<=[:;>] )|(?<=\())(?:(?:\S*python[\d.]* -m )?pip install|sudo|apt-get|modprobe|sysctl|export|ulimit) "
    r".*?(?:(?=[;,.)](?:\s|$))|(?= #)|$)(?: #.*?(?=\)(?:\W|$)|$))?"
    r"|(?<!\w)'(?:mlt|pip|python|sudo|apt-get|modprobe|torchrun|make) [^']*'"
    rf"|\bmlt (?:{_COMMANDS})(?: [a-z]+(?= -))?(?: (?:{_OPTION}|HOST\b))+"
)


def _width() -> int:
    return max(min(shutil.get_terminal_size((MAX_WIDTH, 24)).columns, MAX_WIDTH), MIN_WIDTH)


def tied(text: str) -> str:
    """``text`` in which no line break may part a number from its unit, or a command; ``untied`` restores it."""
    return _IN_SENTENCE.sub(lambda found: found[0].replace(" ", _TIE), _BEFORE_UNIT.sub(_TIE, text))


def untied(text: str) -> str:
    """The text that ``tied`` was given, with the line breaks of now."""
    return text.replace(_TIE, " ")


def wrapped(text: str, first: str, rest: str) -> str:
    wrapper = TextWrapper(
        _width(), initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False
    )
    return untied(wrapper.fill(tied(text)))


def lines(text: str) -> str:
    """Sentences that a command prints: each line wrapped alone, as far in as it begins.

    >>> lines("two hosts\\n  a link of 1 Gbit/s")
    'two hosts\\n  a link of 1 Gbit/s'
    """
    return "\n".join(_kept_line(line.rstrip(), indent=0) for line in text.split("\n"))


def print_lines(text: str, *, err: bool = False) -> None:
    """Print ``lines`` of a text, to standard error with ``err``."""
    print(lines(text), file=sys.stderr if err else sys.stdout)


def paragraph(text: str, indent: int = _INDENT) -> str:
    """A paragraph that begins with a backspace keeps its lines; each is wrapped alone."""
    if not text.lstrip().startswith("\b"):
        return wrapped(" ".join(text.split()), " " * indent, " " * indent)
    lines = [line for line in text.replace("\b", "").splitlines() if line.strip()]
    margin = min(len(line) - len(line.lstrip()) for line in lines)
    return "\n".join(_kept_line(line[margin:].rstrip(), is_example=True) for line in lines)


def _kept_line(line: str, indent: int = _INDENT, *, is_example: bool = False) -> str:
    start = " " * (indent + len(line) - len(line.lstrip()))
    whole = start + line.lstrip()
    if len(whole) <= _width():
        return whole
    # A command and what it does, in columns: each has lines of its own.
    command, gap, text = line.strip().partition("  ")
    rest = start + " " * 4
    if is_example:
        command = command.replace(" ", _TIE)
        parts = text.strip().split(";  ")
        text = ";  ".join(part.replace(" ", _TIE) if part.startswith("mlt ") else part for part in parts)
    return wrapped(command, start, rest) + ("\n" + wrapped(text.strip(), rest, rest) if gap else "")


def rows(title: str, cells: Sequence[tuple[str, str]]) -> str:
    """Two columns; a left cell that is too wide for its column has a line of its own."""
    if not cells:
        return ""
    column = min(max(len(left) for left, _ in cells), 26, _width() - _MIN_TEXT - 2 * _INDENT)
    lines = [f"{title}:"]
    indent = " " * (2 * _INDENT + column)
    for left, right in cells:
        head = " " * _INDENT + left
        if len(left) > column:
            lines.append(wrapped(left, " " * _INDENT, " " * (2 * _INDENT)))
            head = ""
        if right:
            lines.append(wrapped(right, head.ljust(len(indent)), indent))
        elif head:
            lines.append(head)
    return "\n".join(lines)
