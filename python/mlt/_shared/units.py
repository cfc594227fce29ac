"""The one grammar of rates, sizes, times and losses, in every file, option and environment variable.

A number and its unit: ``200mbit`` or ``200 Mbit/s``, ``256KiB``, ``1.5 ms``, ``1%``. The case of a unit does not
matter, but ``MBps``, which means bytes, is rejected as a rate, and ``Mb``, which means bits, as a size. ``KB`` is 1,000
bytes, ``KiB`` 1,024. A number without a unit counts in the base unit: bit/s, bytes, seconds, a fraction.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal

# [0-9]: \d also matches the digits of other scripts.
_NUMBER = re.compile(r"\s*([+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)\s*([A-Za-zµ/%]*)\s*")
_WHOLE = re.compile(r"0*[0-9]{1,19}")
# 0.1 % and 1e-9 s are what people write; Decimal keeps them from becoming 0.0010000000000000002.
_PREFIXES = {"": 0, "k": 3, "m": 6, "g": 9, "t": 12}
# The native library counts nanoseconds in 64 bits, which hold 9.2e9 s.
MAX_SECONDS = 9e9
_WORDS = {"s": "seconds", "ms": "milliseconds", "us": "microseconds"}


@dataclass(frozen=True, eq=False)
class Quantity:
    """One kind of number with units. ``units`` in lower case, each in base units; ``pattern`` is theirs for editors."""

    kind: str
    examples: tuple[str, str]
    units: Mapping[str, Decimal]
    bare: str  # what a number without a unit counts
    pattern: str
    text_of: Callable[[float], str]

    def read(
        self,
        given: object,
        *,
        minimum: float = 0.0,
        maximum: float = math.inf,
        base: str = "",
        above: float = -math.inf,
    ) -> float:
        """``given`` in base units (with ``base``, a name of ``units``, in those), between ``minimum`` and ``maximum``
        base units and greater than ``above``. Raises ValueError that says what is expected."""
        scale = self.units[base] if base else Decimal(1)
        number = self._number(given, scale)
        if number is None:
            is_bare_loss = self is LOSS and isinstance(given, str) and _is_bare(given)
            more = "; without % it is a fraction below 1, and all is 100%" if is_bare_loss else ""
            raise ValueError(f"expected a {self.kind} such as {self.examples[0]} or {self.examples[1]}{more}")
        if not (above < number and minimum <= number <= maximum):
            is_bare = self is not LOSS and isinstance(given, str) and _is_bare(given)
            counts = _WORDS.get(base, base) or self.bare
            more = f"; a number alone counts {counts}: write {self.examples[0]}, say" if is_bare else ""
            raise ValueError(f"expected a {self.kind} {self._limits(minimum, maximum, above)}{more}")
        return float(Decimal(repr(number)) / scale) if base else number

    def named(self, name: str, given: object, *, maximum: float = math.inf, above: float = -math.inf) -> float:
        """``read``; the error names the option or variable ``name`` and what it was given."""
        try:
            return self.read(given, maximum=maximum, above=above)
        except ValueError as error:
            raise ValueError(f"{name} {given!r}: {error}") from None

    def _number(self, given: object, scale: Decimal) -> float | None:
        if isinstance(given, str):
            match = _NUMBER.fullmatch(given)
            unit = match[2].lower() if match else ""
            if match is None or (unit and unit not in self.units):
                return None
            try:
                if self._is_misleading(match[1], match[2]):
                    return None
                number = float(Decimal(match[1]) * (self.units[unit] if unit else scale))
            except ArithmeticError:  # an exponent beyond Decimal's
                return None
            return number if math.isfinite(number) else None
        if isinstance(given, bool) or not isinstance(given, int | float):
            return None
        try:
            # Of a subclass, such as numpy's, repr() may be no number.
            exact = Decimal(given) if isinstance(given, int) else Decimal(repr(float(given)))
            number = float(exact * scale)
        except ArithmeticError:  # more than a float holds
            return None
        return number if math.isfinite(number) else None

    def _is_misleading(self, number: str, unit: str) -> bool:
        """Bytes per second as a rate, megabits as a size, and 1 as a loss, which may mean 1 % or everything."""
        if self is LOSS:
            return not unit and abs(Decimal(number)) >= 1
        if self is RATE:
            return unit.endswith(("Bps", "BPS"))
        return self is SIZE and unit.endswith("b") and unit[:-1].isupper()

    def _limits(self, minimum: float, maximum: float, above: float) -> str:
        low = f"above {self.text_of(above)}" if above > -math.inf else f"of {self.text_of(minimum)} or more"
        if math.isinf(maximum):
            return low
        return (
            f"{low}, and {self.text_of(maximum)} at most"
            if above > -math.inf
            else (f"between {self.text_of(minimum)} and {self.text_of(maximum)}")
        )


def _is_bare(given: str) -> bool:
    """Whether it is a number without a unit."""
    match = _NUMBER.fullmatch(given)
    return match is not None and not match[2]


def whole_number(text: str) -> int | None:
    """``text`` as an integer of up to 19 digits, 0 to 9 only; None if it is anything else, a sign or underscore
    included."""
    return int(text) if _WHOLE.fullmatch(text) else None


def _digits(number: float) -> str:
    return f"{number:.4g}" if number < 9999.5 else f"{number:.0f}"


def format_rate(bits_per_second: float) -> str:
    """``1.25e10`` as ``12.5 Gbit/s``."""
    for prefix in ("T", "G", "M", "k"):
        if bits_per_second >= (scale := 10 ** _PREFIXES[prefix.lower()]):
            return f"{_digits(bits_per_second / scale)} {prefix}bit/s"
    return f"{_digits(bits_per_second)} bit/s"


def format_size(size_bytes: float) -> str:
    """``65536`` as ``64 KiB``, ``9.7e7`` as ``97 MB``: exact in the largest unit where that takes four digits, rounded
    above a gigabyte where it takes more, else bytes."""
    for power, letter in ((4, "T"), (3, "G"), (2, "M"), (1, "K")):
        for scale, unit in ((1024**power, f"{letter}iB"), (1000**power, f"{letter}B")):
            if size_bytes >= scale and size_bytes % scale == 0:
                return f"{size_bytes / scale:.0f} {unit}"
        text = f"{size_bytes / 1000**power:.4g}"
        if size_bytes >= 1000**power and (power > 2 or Decimal(text) * 1000**power == Decimal(size_bytes)):
            return f"{text} {letter}B"
    return f"{_digits(size_bytes)} B"


def format_time(seconds: float) -> str:
    """``0.0125`` as ``12.5 ms``."""
    if math.isinf(seconds):
        return "never"
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= scale:
            return f"{_digits(seconds / scale)} {unit}"
    return f"{seconds / 1e-9:.4g} ns" if seconds else "0 s"


def format_loss(fraction: float) -> str:
    """``0.01`` as ``1%``."""
    return f"{fraction * 100:.4f}".rstrip("0").rstrip(".") + "%"


RATE = Quantity(
    "rate",
    ("200mbit", "'200 Mbit/s'"),
    {
        f"{prefix}{unit}": Decimal(10) ** power
        for prefix, power in _PREFIXES.items()
        for unit in ("bit", "bit/s", "bps")
    },
    "bit/s",
    r"[kKmMgGtT]?([bB]it(/s)?|bps)",
    format_rate,
)
SIZE = Quantity(
    "size",
    ("256KiB", "'97 MB'"),
    {f"{prefix}b": Decimal(10) ** power for prefix, power in _PREFIXES.items()}
    | {f"{prefix}ib": Decimal(1024) ** (power // 3) for prefix, power in _PREFIXES.items() if prefix},
    "bytes",
    r"([kKmMgGtT]i?)?[bB]",
    format_size,
)
TIME = Quantity(
    "time",
    ("10ms", "'1.5 s'"),
    {
        "ns": Decimal("1e-9"), "us": Decimal("1e-6"), "µs": Decimal("1e-6"), "ms": Decimal("1e-3"), "s": Decimal(1),
        "m": Decimal(60), "min": Decimal(60), "h": Decimal(3600),
    },
    "seconds",
    r"(ns|us|µs|ms|s|m|min|h)",
    format_time,
)  # fmt: skip
LOSS = Quantity("loss", ("1%", "0.01"), {"%": Decimal("0.01")}, "a fraction", "%", format_loss)
