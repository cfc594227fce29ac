"""Options whose text is read by a function: ``type=`` of click's options, ``parser=`` of typer's."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import click
import typer


class ParsedOption(click.ParamType):  # type: ignore[type-arg,unused-ignore]  # generic in new releases of click
    """Subclasses read the text."""

    @abstractmethod
    def read(self, value: object) -> Any:
        """The option's value. Raises ValueError with the text of the error."""

    def __call__(self, value: Any, param: Any = None, ctx: Any = None) -> Any:
        """Conversion for typer, which has its own exceptions; click calls this with the parameter."""
        if param is not None or ctx is not None:
            return self.convert(value, param, ctx)
        try:
            return self.read(value)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Conversion for click."""
        try:
            return self.read(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)
