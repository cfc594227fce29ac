"""One style of help for every command, whether click or typer's copy of it parses the arguments.

Reads commands and parameters by attributes that both have. Breaks lines between words only, at any width.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextvars import ContextVar
from enum import Enum
from typing import Any

from mlt._shared.units import LOSS, RATE, SIZE, TIME, Quantity
from mlt.cli.layout import paragraph, rows, wrapped
from mlt.cli.option_pairs import wrong_pair

_ENDS_IN_NUMBER = re.compile(r"(.*,)?[0-9.]+")  # of a list, the last
_KINDS = {"integer": "N", "integer range": "N", "int": "N", "float": "X", "float range": "X", "path": "FILE"}


# The context of the command that runs.
running: ContextVar[Any] = ContextVar("running")


class HelpMixin:
    """Base before a command class of either library."""

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        """Parses as the library does; its errors know the command that they are about."""
        try:
            text = _wrong_dashes(self, ctx, args) or _split_quantity(self, args) or _empty_value(self, ctx, args)
            if text is not None:
                ctx.fail(text)
            rest = super().parse_args(ctx, args)  # type: ignore[misc]
            if (text := wrong_pair(self, ctx)) is not None:
                ctx.fail(text)
            return rest
        except Exception as error:
            if getattr(error, "ctx", ctx) is None:
                error.ctx = ctx  # type: ignore[attr-defined]
            raise

    def invoke(self, ctx: Any) -> Any:
        """Runs as the library does; ``running`` is its context meanwhile."""
        token = running.set(ctx)
        try:
            return super().invoke(ctx)  # type: ignore[misc]
        finally:
            running.reset(token)

    def get_usage(self, ctx: Any) -> str:
        """The usage line, for errors."""
        return usage(self, ctx)

    def get_help(self, ctx: Any) -> str:
        """The whole help."""
        return help_text(self, ctx)


def _wrong_dashes(command: Any, ctx: Any, args: Sequence[str]) -> str | None:
    """An error about the first long option with one dash, ``-workers 4``, which the libraries read as letters, or about
    the first option whose value is missing, ``--json --watch``, where they take the next option for it; None: there is
    none."""
    names = {name: param for param in command.get_params(ctx) for name in (*param.opts, *param.secondary_opts)}
    waiting = None  # the option whose value follows
    for word in args:
        name = word.partition("=")[0]
        if waiting is not None:
            if word.startswith("--") or name in names:
                long = max(names[waiting].opts, key=len)
                way_out = "" if word == "--" else f"; if {word} is the value, write {long}={word}"
                return f"{waiting} needs a value before {word}{way_out}"
            waiting = None
        elif word == "--" or (not word.startswith("-") and not ctx.allow_interspersed_args):
            return None  # another program's words
        elif name.startswith("-") and not name.startswith("--") and len(name) > 2 and f"-{name}" in names:
            return f"No such option: {name}; write -{name}"
        elif name == word and name in names and takes_value(names[name]):
            waiting = name
    return None


def _split_quantity(command: Any, args: Sequence[str]) -> str | None:
    """An error about the first option whose value was written as two words, ``--rate 200 Mbit/s``; None: none was."""
    words = list(args[: args.index("--")] if "--" in args else args)
    for option, value, unit in zip(words, words[1:], words[2:], strict=False):
        param = next((one for one in command.params if option in one.opts and not _is_argument(one)), None)
        if param is None or not takes_value(param) or not _ENDS_IN_NUMBER.fullmatch(value):
            continue
        quantity = _quantity_of(param)
        # Lists of quantities are text; there a single letter may be an argument.
        known = (quantity,) if quantity else (RATE, SIZE, TIME, LOSS) if _is_text(param) else ()
        if any(unit.lower() in one.units for one in known) and (quantity or len(unit) > 1 or unit == "%"):
            return f"{option} {value} {unit}: write {value}{unit} or '{value} {unit}'"
    return None


def _empty_value(command: Any, ctx: Any, args: Sequence[str]) -> str | None:
    """An error about an empty word, ``-o ''``, where a value has to be; None: there is none.

    Another program's words may be empty, and options whose default is.
    """
    if not any(word == "" or word.endswith("=") for word in args):
        return None
    values, *_ = command.make_parser(ctx).parse_args(args=list(args))
    for param in command.params:
        found = values.get(param.name)
        others = _is_argument(param) and param.nargs == -1
        if others or param.default == "" or "" not in (found if isinstance(found, list | tuple) else [found]):
            continue
        name = argument_name(param).strip("[].").partition("[")[0] if _is_argument(param) else max(param.opts, key=len)
        return f"{name} is empty: give a value, or leave it out"
    return None


def usage(command: Any, ctx: Any) -> str:
    """``Usage: mlt plan auto [OPTIONS] CLUSTER JOB``."""
    pieces = ["[OPTIONS]", *(argument_name(param) for param in command.params if _is_argument(param))]
    if hasattr(command, "list_commands"):
        pieces.append("COMMAND [ARGS]...")
    head = f"Usage: {ctx.command_path} "
    return wrapped(" ".join(pieces), head, " " * min(len(head), 8))


def help_text(command: Any, ctx: Any) -> str:
    """Usage, description, arguments, options and commands."""
    parts = [usage(command, ctx)]
    parts += [paragraph(text) for text in (command.help or "").strip().split("\n\n")]
    # The context's: it has help for options that a parent gives a meaning (-h).
    params = command.get_params(ctx)
    arguments = [form(one) for one in params if _is_argument(one) and _help_of(one)]
    options = [form(one) for one in params if not _is_argument(one) and not one.hidden]
    parts += [rows("Arguments", arguments), rows("Options", options)]
    if hasattr(command, "list_commands"):
        found = ((name, command.get_command(ctx, name)) for name in command.list_commands(ctx))
        members = [(name, short_help(one)) for name, one in found if one is not None and not one.hidden]
        parts.append(rows("Commands", members))
    if command.epilog:
        parts += [paragraph(text) for text in command.epilog.strip().split("\n\n")]
    return "\n\n".join(part for part in parts if part)


def short_help(command: Any) -> str:
    """The first sentence of a command's help, whole."""
    text = " ".join((command.short_help or (command.help or "").strip().split("\n\n")[0]).split())
    sentence = text.partition(". ")[0]
    return sentence.rstrip(".:")


def argument_name(param: Any) -> str:
    """``CLUSTER``, ``[HOST]`` or ``COMMAND...``."""
    name = param.metavar or str(param.name).removesuffix("_file").upper()
    if not name.startswith("[") and not param.required:
        name = f"[{name}]"
    return f"{name}..." if param.nargs == -1 else name


def option_names(param: Any) -> str:
    """``-o, --output FILE``: short names first."""
    names = sorted(param.opts, key=lambda name: (name.startswith("--"), len(name)))
    if param.secondary_opts:
        return f"{', '.join(names)} / {', '.join(param.secondary_opts)}"
    return ", ".join(names) + ("" if _is_flag(param) else f" {value_name(param)}")


def form(param: Any) -> tuple[str, str]:
    """The written form of an option or argument, and its help."""
    return (argument_name(param) if _is_argument(param) else option_names(param)), _described(param)


def choices_of(param: Any) -> list[str]:
    """The words of which the parameter takes one, or none."""
    found = getattr(_type_of(param), "choices", None) or ()
    return [str(one.value) if isinstance(one, Enum) else str(one) for one in found]


def value_name(param: Any) -> str:
    """``FILE``, ``N``, ``SIZE`` or ``patient|eager``: what the parameter takes."""
    if param.metavar:
        return str(param.metavar)
    if choices := choices_of(param):
        return "|".join(choices)
    quantity = _quantity_of(param)
    if quantity is not None:
        return quantity.kind.upper()
    return _kind_of(param)


def _kind_of(param: Any) -> str:
    kind = _type_of(param)
    if hasattr(kind, "annotation"):  # typer since 0.27
        text = str(getattr(kind.annotation, "__name__", "")) if not kind.is_path else "path"
    else:
        text = str(getattr(kind, "name", ""))
    return _KINDS.get(text.lower(), "TEXT")


def _is_text(param: Any) -> bool:
    return _kind_of(param) == "TEXT" and not choices_of(param)


def _type_of(param: Any) -> Any:
    return getattr(param, "type_descriptor", None) or getattr(param, "type", None)


def _quantity_of(param: Any) -> Quantity | None:
    """The quantity that a parameter's type reads, if it is a ``UnitOption``: of click's, or wrapped by typer."""
    kind = _type_of(param)
    kind = kind.parameter_info.parser if hasattr(kind, "parameter_info") else kind
    found = (getattr(one, "quantity", None) for one in (kind, getattr(kind, "func", None)))
    return next((one for one in found if isinstance(one, Quantity)), None)


def takes_value(param: Any) -> bool:
    """Whether a word follows the option."""
    return not _is_flag(param)


def _is_argument(param: Any) -> bool:
    return str(param.param_type_name) == "argument"


def _is_flag(param: Any) -> bool:
    return bool(getattr(param, "is_flag", False) or getattr(param, "count", False))


def _help_of(param: Any) -> str:
    return getattr(param, "help", None) or ""


def _described(param: Any) -> str:
    text, own = _help_of(param), ""
    if (ending := re.fullmatch(r"(.*?) *\[([^][]*)\]", text, re.DOTALL)) is not None:
        text, own = ending.groups()
    notes = [note for note in (own, _variable(param), _default(param), _range(param)) if note]
    if getattr(param, "required", False) and not _is_argument(param):
        notes.append("required")
    return f"{text}  [{'; '.join(notes)}]" if notes else text


def _variable(param: Any) -> str:
    variable = getattr(param, "envvar", None)
    return "" if not variable else f"variable: {variable if isinstance(variable, str) else ', '.join(variable)}"


def _default(param: Any) -> str:
    value = param.default
    if isinstance(param.show_default if hasattr(param, "show_default") else None, str):
        return f"default: {param.show_default}"
    if _is_flag(param) and not param.secondary_opts:
        return ""
    if isinstance(value, Enum):
        value = "" if value.name == "UNSET" else value.value
    if value is None or value in ("", (), []) or callable(value) or getattr(param, "show_default", None) is False:
        return ""
    if isinstance(value, bool):
        return f"default: {(param.opts if value else param.secondary_opts)[0]}"
    quantity = _quantity_of(param)
    return f"default: {quantity.text_of(value) if quantity is not None else value}"


def number_expected(param: Any) -> str | None:
    """The value that a parameter expects if it takes a number; None for others."""
    what = {"N": "an integer", "X": "a number"}.get(_kind_of(param))
    minimum, maximum = _limits(param)
    if what is None or (minimum is None and maximum is None):
        return what and f"expected {what}"
    if maximum is None:
        return f"expected {what} of {minimum} or more"
    return (
        f"expected {what} of {maximum} or less" if minimum is None else f"expected {what} from {minimum} to {maximum}"
    )


def _range(param: Any) -> str:
    minimum, maximum = _limits(param)
    if minimum is None:
        return "" if maximum is None else f"max: {maximum}"
    return f"min: {minimum}" if maximum is None else f"{minimum} to {maximum}"


def _limits(param: Any) -> tuple[Any, Any]:
    minimum, maximum = (
        getattr(param, name, None) if hasattr(param, name) else getattr(_type_of(param), name, None)
        for name in ("min", "max")
    )
    return minimum, maximum
