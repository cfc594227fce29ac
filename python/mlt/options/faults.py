"""Injected faults between the protocol and the network, for tests."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from mlt._shared.units import LOSS, TIME, whole_number
from mlt.errors import ConfigError

if TYPE_CHECKING:
    from mlt import _core


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """Faults that the fault datapath applies to the datagrams this rank sends.

    ``drop``, ``duplicate``, ``reorder`` and ``corrupt`` are probabilities per datagram in [0, 1]. Each datagram is
    delayed by ``delay_us`` plus a uniform random time up to ``jitter_us``. The same ``seed`` makes the same decisions.
    ``control``: apply faults to datagrams of the control class too. Raises ConfigError for values out of range.

    >>> Faults.parse("drop=1%,delay_us=2ms") == Faults(drop=0.01, delay_us=2_000)
    True
    """

    drop: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    corrupt: float = 0.0
    delay_us: float = 0.0
    jitter_us: float = 0.0
    seed: int = 1
    control: bool = True

    def __post_init__(self) -> None:
        for name in ("drop", "duplicate", "reorder", "corrupt"):
            value = getattr(self, name)
            if not 0.0 <= value <= 1.0:
                raise ConfigError(f"Faults.{name} is {value!r}; it is a probability in [0, 1]")
        for name in ("delay_us", "jitter_us"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0.0):
                raise ConfigError(f"Faults.{name} is {value!r}; it is a time in microseconds, 0 or more")
        if not 0 <= self.seed < 2**64:
            raise ConfigError(f"Faults.seed is {self.seed!r}; it is an integer in [0, 2**64)")

    @classmethod
    def parse(cls, text: str) -> Faults:
        """Read ``"drop=1%,delay_us=2ms,seed=7"``: fields of this class and their values, separated by commas.

        A number without a unit is a fraction, or microseconds. Raises ConfigError.
        """
        readers = {field.name: _TIMES.get(field.name) or _READERS[str(field.type)] for field in fields(cls)}
        values: dict[str, float] = {}
        for item in filter(None, (part.strip() for part in text.split(","))):
            name, equals, value = (piece.strip() for piece in item.partition("="))
            if not equals or name not in readers:
                raise ConfigError(f"faults: {item!r} is not name=value with a name of {', '.join(readers)}")
            try:
                values[name] = readers[name](value)
            except ValueError as error:
                raise ConfigError(f"faults: {item!r}: {error}") from None
        return cls(**values)  # type: ignore[arg-type]  # each value was built with its field's type

    def to_native(self) -> _core.FaultOptions:
        """The options of the native library."""
        from mlt import _core

        return _core.FaultOptions(
            drop=self.drop,
            duplicate=self.duplicate,
            reorder=self.reorder,
            corrupt=self.corrupt,
            delay_ns=round(self.delay_us * 1_000),
            jitter_ns=round(self.jitter_us * 1_000),
            seed=self.seed,
            control=self.control,
        )


def _microseconds(text: str) -> float:
    return TIME.read(text, base="us")


def _integer(text: str) -> int:
    if (number := whole_number(text)) is None:
        raise ValueError("expected an integer")
    return number


def _boolean(text: str) -> bool:
    known = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
    try:
        return known[text.lower()]
    except KeyError:
        raise ValueError("expected true or false") from None


_TIMES: dict[str, Callable[[str], float]] = {"delay_us": _microseconds, "jitter_us": _microseconds}
_READERS: dict[str, Callable[[str], float]] = {"float": LOSS.read, "int": _integer, "bool": _boolean}
