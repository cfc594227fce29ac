"""``max_dead_workers`` and ``max_wait`` of a summation service: arguments before variables, and wrong values."""

from __future__ import annotations

import pytest

from mlt.errors import ConfigError
from mlt.options.serving import ServiceOptions, max_dead_services, resolve


def test_resolve__takes_arguments_before_variables_and_these_before_nothing() -> None:
    environ = {"MLT_MAX_DEAD_WORKERS": "2", "MLT_MAX_WAIT": "250ms"}
    assert resolve(environ={}) == ServiceOptions(0, 0)
    assert resolve(environ=environ) == ServiceOptions(2, 250_000_000)
    assert resolve(0, 3, environ) == ServiceOptions(0, 3_000_000_000)


def test_max_dead_services__takes_the_argument_before_the_variable() -> None:
    environ = {"MLT_MAX_DEAD_SERVICES": "2"}
    assert [max_dead_services(None, {}), max_dead_services(None, environ), max_dead_services(0, environ)] == [0, 2, 0]


@pytest.mark.parametrize("value", [-1, 65_536, True, 1.5])
def test_max_dead_workers__out_of_range_is_named(value: object) -> None:
    with pytest.raises(ConfigError, match="max_dead_workers is"):
        resolve(value, environ={})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="max_dead_services is"):
        max_dead_services(value, {})  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [0, -1.0, float("nan"), float("inf")])
def test_max_wait__that_is_no_time_is_named(value: float) -> None:
    with pytest.raises(ConfigError, match="max_wait is"):
        resolve(max_wait=value, environ={})
