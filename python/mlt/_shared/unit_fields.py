"""Fields of pydantic models that are written with units."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import PydanticCustomError, core_schema

from mlt._shared.units import LOSS, RATE, SIZE, TIME, Quantity

__all__ = ["LOSS", "RATE", "SIZE", "TIME", "Unit"]


@dataclass(frozen=True)
class Unit:
    """``Annotated[float, Unit(RATE, above=0)]``: read by the grammar of ``mlt._shared.units``, within its limits.
    ``whole`` rounds to an integer before that."""

    quantity: Quantity
    minimum: float = 0.0
    maximum: float = math.inf
    above: float = -math.inf
    whole: bool = False

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.no_info_before_validator_function(self._read, handler(source))

    def __get_pydantic_json_schema__(self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler) -> Any:
        text = rf"^\s*[0-9.]+([eE][+-]?[0-9]+)?\s*({self.quantity.pattern})?\s*$"
        examples = [example.strip("'") for example in self.quantity.examples]
        number = {"type": "number", "minimum": 0}
        return {"anyOf": [number, {"type": "string", "pattern": text, "examples": examples}]}

    def _read(self, given: object) -> float | int:
        try:
            number = self.quantity.read(given, minimum=self.minimum, maximum=self.maximum, above=self.above)
        except ValueError as error:
            raise PydanticCustomError("quantity", "{text}", {"text": str(error)}) from None
        # A half byte that a caller computed remains invalid.
        return round(number) if self.whole and (isinstance(given, str) or number.is_integer()) else number
