"""Times of a rank: arguments before variables, the grammar of units, errors that name what is wrong."""

from __future__ import annotations

import pytest
from checks import names

from mlt.errors import ConfigError
from mlt.options.times import VARIABLES, nanoseconds, resolve


def test_resolve__arguments_count_before_variables_which_take_units() -> None:
    environ = {"MLT_PEER_TIMEOUT": "1500ms", "MLT_CONNECT_TIMEOUT": " 90 ", "MLT_OPERATION_TIMEOUT": ""}
    assert resolve({"connect_timeout": 5, "peer_timeout": None}, environ) == {
        "connect_timeout": 5.0,
        "peer_timeout": 1.5,
    }
    assert resolve({}, {}) == {}


@pytest.mark.parametrize("name", VARIABLES)
def test_resolve__an_invalid_time_is_an_error_that_names_argument_or_variable(name: str) -> None:
    for value in (0, -1, float("inf"), float("nan"), True, "3"):
        with pytest.raises(ConfigError, match=names(name, repr(value), "seconds")):
            resolve({name: value}, {})
    for text in ("0", "-2s", "soon", "3 Gbit/s"):
        with pytest.raises(ConfigError, match=names(VARIABLES[name], repr(text), "seconds")):
            resolve({}, {VARIABLES[name]: text})


@pytest.mark.parametrize("name", ["peer_timeout", "suspended_timeout"])
def test_resolve__times_that_others_are_derived_from_are_a_millisecond_or_more(name: str) -> None:
    assert resolve({name: 1e-3}, {}) == {name: 1e-3}
    with pytest.raises(ConfigError, match=names(name, "0.001 or more")):
        resolve({name: 1e-9}, {})
    with pytest.raises(ConfigError, match=names(VARIABLES[name], "0.001 or more")):
        resolve({}, {VARIABLES[name]: "1ns"})


def test_nanoseconds__is_never_zero() -> None:
    assert nanoseconds(1e-12, "timeout") == 1
    assert nanoseconds(2.5, "timeout") == 2_500_000_000
