"""Command options with units."""

from __future__ import annotations

import math

from mlt._shared.units import LOSS, MAX_SECONDS, RATE, SIZE, TIME, Quantity
from mlt.cli.parsed_option import ParsedOption

__all__ = ["LOSS", "RATE", "SIZE", "TIME", "Quantity", "UnitOption"]


class UnitOption(ParsedOption):
    """A number in base units: ``type=`` of click's options, ``parser=`` of typer's. ``whole``: an integer."""

    def __init__(
        self, quantity: Quantity, *, minimum: float = 0.0, maximum: float = math.inf, above: float = -math.inf,
        whole: bool = False,
    ) -> None:  # fmt: skip
        if quantity is TIME:
            maximum = min(maximum, MAX_SECONDS)
        self.quantity = quantity
        self._minimum, self._maximum, self._above = minimum, maximum, above
        self._whole = whole
        self.name = self.__name__ = quantity.kind

    def read(self, value: object) -> float | int:
        try:
            number = self.quantity.read(value, minimum=self._minimum, maximum=self._maximum, above=self._above)
        except ValueError as error:
            raise ValueError(f"{value!r}: {error}") from None
        return round(number) if self._whole else number
