"""Names the options that an error is about, where code below the commands knows only a file, a value or a parameter."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mlt.cli.help_text import value_name

_NAME = re.compile(r"(?<![\w-])--?[a-z][a-z0-9-]*")
# What only a program can give: the command has no such option.
_ARGUMENTS = re.compile(r", or pass \w+=(?:(?:, | and )\w+=)*(?=$|[.;:])")


def options_in(text: str, command: Any) -> list[Any]:
    """The options of the command that the text names."""
    named = set(_NAME.findall(text))
    return [one for one in command.params if named & {*one.opts, *one.secondary_opts}]


def with_options(text: str, ctx: Any) -> str:
    """``text`` with the command line's name for each parameter that it names, such as ``--world-size`` for
    ``world_size=``, and without those that it lacks; if it then names no option, with the one before it whose value it
    repeats."""
    if _is_about_a_file(text, ctx):
        return text
    options = [one for one in ctx.command.params if one.param_type_name == "option"]
    for param in options:
        option = max(param.opts, key=len)
        if "_" in param.name:
            text = re.sub(rf"(?<![\w.-]){param.name}(?![\w.])=?", option, text)
        else:
            text = re.sub(rf"(?:^|(?<=: )|(?<=pass )){param.name}(?:=|(?= \(| is |: ))", option, text)
    text = _ARGUMENTS.sub("", text)
    if options_in(text, ctx.command):
        return text
    for param in options:
        option = max(param.opts, key=len)
        for value in _given(ctx, param):
            if text.startswith(f"{value}: "):
                return f"{option} {text}"
            if text.startswith(f"{param.name} {value}"):
                return text.replace(param.name, option, 1)
            if repr(str(value)) in text or (value_name(param).startswith("FILE") and str(value) in text):
                return f"{option}: {text}"
    return text


def _is_about_a_file(text: str, ctx: Any) -> bool:
    """Whether it begins with a file of the command line and a line: the names that follow are the file's."""
    files = [str(one) for param in ctx.command.params for one in _given(ctx, param)]
    return any(text.startswith(f"{file}:") and re.match("[0-9]+: ", text[len(file) + 1 :]) for file in files)


def _given(ctx: Any, param: Any) -> Iterator[Any]:
    """The texts and files that the command line gives for an option."""
    if getattr(ctx.get_parameter_source(param.name), "name", "") == "COMMANDLINE":
        value = ctx.params.get(param.name)
        for one in value if isinstance(value, list | tuple) else (value,):
            if isinstance(one, str | Path) and str(one):
                yield one
