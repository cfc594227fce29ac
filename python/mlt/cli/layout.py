"""Paragraphs and two columns, with lines broken between words only, at any width."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from textwrap import TextWrapper

MAX_WIDTH, MIN_WIDTH = 100, 40
_INDENT = 2
_MIN_TEXT = 24


def _width() -> int:
    return max(min(shutil.get_terminal_size().columns, MAX_WIDTH), MIN_WIDTH)


def wrapped(text: str, first: str, rest: str) -> str:
    wrapper = TextWrapper(
        _width(), initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False
    )
    return wrapper.fill(text)


def paragraph(text: str, indent: int = _INDENT) -> str:
    """A paragraph that begins with a backspace keeps its lines; each is wrapped alone."""
    if not text.lstrip().startswith("\b"):
        return wrapped(" ".join(text.split()), " " * indent, " " * indent)
    lines = [line for line in text.replace("\b", "").splitlines() if line.strip()]
    margin = min(len(line) - len(line.lstrip()) for line in lines)
    return "\n".join(_kept_line(line[margin:].rstrip()) for line in lines)


def _kept_line(line: str) -> str:
    start = " " * (_INDENT + len(line) - len(line.lstrip()))
    whole = start + line.lstrip()
    return whole if len(whole) <= _width() else wrapped(line.strip(), start, start + " " * 4)


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
