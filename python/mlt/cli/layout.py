"""Paragraphs and two columns, with lines broken between words only, at any width; a number keeps its unit."""

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


def _width() -> int:
    return max(min(shutil.get_terminal_size((MAX_WIDTH, 24)).columns, MAX_WIDTH), MIN_WIDTH)


def tied(text: str) -> str:
    """``text`` in which no line break may part a number from its unit; ``untied`` restores it."""
    return _BEFORE_UNIT.sub(_TIE, text)


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
    return "\n".join(_kept_line(line[margin:].rstrip()) for line in lines)


def _kept_line(line: str, indent: int = _INDENT) -> str:
    start = " " * (indent + len(line) - len(line.lstrip()))
    whole = start + line.lstrip()
    if len(whole) <= _width():
        return whole
    # A command and what it does, in columns: each has lines of its own.
    command, gap, text = line.strip().partition("  ")
    rest = start + " " * 4
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
