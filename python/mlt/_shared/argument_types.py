"""Names the argument whose type differs from its annotation; native functions list their whole signature instead."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from numbers import Integral, Real
from typing import Any, ParamSpec, TypeVar

_P = ParamSpec("_P")
_R = TypeVar("_R")


def _is_integer(value: object) -> bool:
    return isinstance(value, Integral) or hasattr(value, "__index__")


def _are_integers(value: object) -> bool:
    try:
        return not isinstance(value, str | bytes) and all(map(_is_integer, value))  # type: ignore[call-overload]
    except TypeError:
        return False


# Annotation -> check, expectation. Arguments with other annotations are not checked.
_KINDS: Mapping[str, tuple[Callable[[object], bool], str]] = {
    "int": (_is_integer, "an integer"),
    "float": (lambda value: isinstance(value, Real) or hasattr(value, "__float__"), "a number"),
    "float | str": (
        lambda value: isinstance(value, Real | str) or hasattr(value, "__float__"),
        "a number, or '1%', say",
    ),
    "bool": (lambda value: hasattr(value, "__bool__"), "True or False"),
    "str": (lambda value: isinstance(value, str), "text"),
    "Sequence[int]": (_are_integers, "a list of integers"),
    "Reduction": (lambda value: type(value).__name__ == "Reduction", "a mlt.Reduction"),
    "Faults": (lambda value: hasattr(value, "to_native"), "mlt.options.faults.Faults, or None"),
    # The policy's and the secret's own checks know the rest.
    "qos.PolicySource": (lambda value: not isinstance(value, bytes), "the path of a policy file, or a mapping"),
    "str | bytes | JobSecret": (
        lambda value: isinstance(value, str | bytes) or type(value).__name__ == "JobSecret",
        "text or bytes",
    ),
}
_HIDDEN = ("secret",)


def check_types(
    name: str, annotations: Mapping[str, Any], given: Mapping[str, object], forms: Mapping[str, str]
) -> None:
    """Reject the first argument of the call ``name`` of a wrong type. ``forms``: the right form of some arguments.

    Raises:
        TypeError: names the argument, its value (not that of a secret), and what it should be.
    """
    if (error := _wrong(name, annotations, given, forms)) is not None:
        raise error


def explained(error: TypeError, name: str, annotations: Mapping[str, Any], given: Mapping[str, object]) -> TypeError:
    """``error`` of the call ``name``, or one that names the first argument of a wrong type if there is one."""
    return _wrong(name, annotations, given, {}) or error


def _wrong(
    name: str, annotations: Mapping[str, Any], given: Mapping[str, object], forms: Mapping[str, str]
) -> TypeError | None:
    for argument, value in given.items():
        annotation = annotations.get(argument, "")
        text = str(getattr(annotation, "__forward_arg__", annotation))
        kind = text.removesuffix(" | None")
        if kind not in _KINDS or (value is None and kind != text):
            continue
        fits, expected = _KINDS[kind]
        if not fits(value):
            hint = "; 1% is 0.01" if isinstance(value, str) and value.endswith("%") else ""
            hint = f", such as {argument}={forms[argument]}" if argument in forms else hint
            shown = f"of type {type(value).__name__}" if argument in _HIDDEN else repr(value)
            return TypeError(f"{name}: {argument} is {shown}; it is {expected}{hint}")
    return None


def explains_types(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """A function whose TypeErrors name the argument."""

    @functools.wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            return function(*args, **kwargs)
        except TypeError as error:
            try:
                given = inspect.signature(function).bind(*args, **kwargs).arguments
            except TypeError:  # another number of arguments
                raise error from None
            raise explained(error, function.__name__, function.__annotations__, given) from None

    return call
