"""Command options with units."""

from __future__ import annotations

import math
from typing import Any

import click
import typer

from mlt._shared.units import LOSS, MAX_SECONDS, RATE, SIZE, TIME, Quantity

__all__ = ["LOSS", "RATE", "SIZE", "TIME", "Quantity", "UnitOption"]


class UnitOption(click.ParamType):  # type: ignore[type-arg,unused-ignore]  # generic in new releases of click
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

    def __call__(self, value: Any, param: Any = None, ctx: Any = None) -> Any:
        """Conversion for typer, which has its own exceptions; click calls this with the parameter."""
        if param is not None or ctx is not None:
            return self.convert(value, param, ctx)
        try:
            return self._read(value)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float | int:
        """Conversion for click."""
        try:
            return self._read(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)

    def _read(self, value: object) -> float | int:
        try:
            number = self.quantity.read(value, minimum=self._minimum, maximum=self._maximum, above=self._above)
        except ValueError as error:
            raise ValueError(f"{value!r}: {error}") from None
        return round(number) if self._whole else number
