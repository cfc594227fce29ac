"""Numbers and times in environment variables: no other module parses them.

An empty variable counts as unset; spaces around a value do not matter. A ConfigError names the variable, its value and
what it must be.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from mlt._shared.units import MAX_SECONDS, TIME, whole_number
from mlt.errors import ConfigError

MAX_PORT = 65_535


def text(environ: Mapping[str, str], name: str) -> str | None:
    """The value without the spaces around it; None if it is unset or empty."""
    return environ.get(name, "").strip() or None


def integer(environ: Mapping[str, str], name: str, *, minimum: int = 0, maximum: int | None = None) -> int | None:
    """An integer from ``minimum`` to ``maximum``, in the digits 0 to 9: no sign, underscore or other script."""
    given = text(environ, name)
    if given is None:
        return None
    number = whole_number(given)
    if number is None or number < minimum or (maximum is not None and number > maximum):
        limits = f"from {minimum} to {maximum}" if maximum is not None else f"of {minimum} or more"
        raise ConfigError(f"{name} is {given!r}; it is an integer {limits}, in the digits 0 to 9")
    return number


def port(environ: Mapping[str, str], name: str) -> int | None:
    """A port, 1 to 65535."""
    return integer(environ, name, minimum=1, maximum=MAX_PORT)


def flag(environ: Mapping[str, str], name: str) -> bool:
    """Whether it is 1; 0 and unset are not."""
    return integer(environ, name, maximum=1) == 1


def time(
    environ: Mapping[str, str], name: str, *, is_zero_valid: bool = False, maximum: float = MAX_SECONDS, unit: str = "s"
) -> float | None:
    """A time in ``unit``, "s" or "us", which a number without a unit has; above 0, unless zero is valid. ``maximum`` is
    in seconds."""
    given = text(environ, name)
    if given is None:
        return None
    try:
        return TIME.read(given, base=unit, maximum=maximum, above=-math.inf if is_zero_valid else 0.0)
    except ValueError as error:
        bare = {"s": "seconds", "us": "microseconds"}[unit]
        more = "" if "a number alone" in str(error) else f"; a number without a unit is in {bare}"
        raise ConfigError(f"{name} is {given!r}: {error}{more}") from None
