"""The values that files expect of their fields, in mlt's words."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from mlt._shared.field_errors import expectation, given


class Inner(BaseModel):
    model_config = ConfigDict(extra="forbid")
    number: int = 1


class Whole(BaseModel):
    model_config = ConfigDict(extra="forbid")
    count: int = Field(default=1, ge=1, lt=10)
    share: float = Field(default=0.5, gt=0, le=1)
    on: bool = True
    name: str = Field(default="a", pattern="^[a-z]+$")
    kind: Literal["red", "fifo"] = "red"
    inner: Inner = Inner()
    several: Annotated[list[int], Field(min_length=1)] = [1]
    pair: tuple[int, ...] = ()
    must: int
    own: str = ""

    @field_validator("own")
    @classmethod
    def _own(cls, value: str) -> str:
        if value:
            raise ValueError("say nothing here")
        return value


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"count": "many"}, "expected an integer"),
        ({"count": 1.5}, "expected an integer"),
        ({"count": 0}, "expected 1 or more"),
        ({"count": 10}, "expected less than 10"),
        ({"share": "x"}, "expected a number"),
        ({"share": 0}, "expected more than 0"),
        ({"share": 2}, "expected 1 or less"),
        ({"on": "perhaps"}, "expected true or false"),
        ({"name": 4}, "expected text"),
        ({"name": "A"}, "expected text of the form ^[a-z]+$"),
        ({"kind": "foo"}, "expected 'red' or 'fifo'"),
        ({"inner": 3}, "expected a mapping of keys"),
        ({"inner": {"nosuch": 1}}, "unknown key"),
        ({"several": 3}, "expected a list"),
        ({"several": []}, "expected 1 or more entries"),
        ({"pair": 3}, "expected a list"),
        ({"must": None}, "expected an integer"),
        ({"own": "x"}, "say nothing here"),
    ],
)
def test_expectation__in_our_words(fields: dict[str, Any], expected: str) -> None:
    with pytest.raises(ValidationError) as error:
        Whole.model_validate({"must": 1, **fields})
    assert [expectation(dict(problem)) for problem in error.value.errors()] == [expected]


def test_expectation__of_a_missing_key() -> None:
    with pytest.raises(ValidationError) as error:
        Whole.model_validate({})
    assert expectation(dict(error.value.errors()[0])) == "is required"


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, ", got null"), (False, ", got false"), (1.5, ", got 1.5"), ("a", ", got 'a'"), ({"a": None}, ""), ([], "")],
)
def test_given__shows_a_value_as_the_file_has_it(value: object, text: str) -> None:
    assert given(value) == text
