"""Limits: what sets them, and what happens where they are reached."""

from __future__ import annotations

import pytest

from mlt.errors import ConfigError
from mlt.options.limits import VARIABLES, resolve


def test_limits__arguments_count_before_variables_and_these_before_defaults() -> None:
    environ = {"MLT_MAX_OPERATIONS": " 100 ", "MLT_MAX_TAGS": "200", "MLT_EARLY_SEGMENTS": ""}
    limits = resolve({"max_tags": 7, "early_transfers": None}, environ=environ)
    assert limits == {"max_operations": 100, "max_tags": 7}
    assert resolve({}, environ={}) == {}


@pytest.mark.parametrize("name", VARIABLES)
@pytest.mark.parametrize("value", [0, -1, 2**30, True])
def test_limits__out_of_range_is_an_error_that_names_argument_or_variable(name: str, value: int) -> None:
    variable, maximum = VARIABLES[name]
    with pytest.raises(ConfigError, match=f"^{name} is {value!r}; it is an integer from 1 to {maximum}$"):
        resolve({name: value}, environ={})
    with pytest.raises(
        ConfigError, match=rf"^{variable} is .*; it is an integer from 1 to {maximum}, in the digits 0 to 9$"
    ):
        resolve({}, environ={variable: str(value)})
