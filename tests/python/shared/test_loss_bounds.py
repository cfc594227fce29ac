"""Loss bounds of calls: numbers, or text by the one grammar of units."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from checks import assert_names, names

import mlt
from mlt._shared.loss_bounds import loss_bound_of

BAD = ["100%", "1", "-1%", "10 pct", ""]


@pytest.mark.parametrize(
    ("given", "fraction"),
    [
        *[(0, 0.0), (0.1, 0.1), ("10%", 0.1), ("0.5 %", 0.005), ("0.25", 0.25)],
        *[(np.float64(0.1), 0.1), (np.float32(0.5), 0.5), (np.interp(1, [0, 2], [0, 0.2]), 0.1)],
    ],
)
def test_loss_bound_of__a_number_or_text(given: float | str, fraction: float) -> None:
    assert loss_bound_of(given) == fraction


@pytest.mark.parametrize("given", [*BAD, 1.0, -0.1, float("nan"), np.float64("inf"), 10**400, True, None, b"1%"])
def test_loss_bound_of__rejects_what_is_outside_the_range(given: Any) -> None:
    with pytest.raises(mlt.ConfigError, match=names(repr(given), "[0, 1)", "10%")):
        loss_bound_of(given)


def posts(context: mlt.Context, bound: Any) -> list[Any]:
    """Every call of a context that takes a bound."""
    one, other = np.ones(4, np.float32), np.zeros(4, np.float32)
    return [
        lambda: context.post_recv(other, bound, from_=0, tag=1),
        lambda: context.all_reduce(one.copy(), loss_bound=bound),
        lambda: context.all_to_all(other, one, loss_bound=bound),
        lambda: context.gather(one, other, loss_bound=bound),
        lambda: context.all_gather(other, one, loss_bound=bound),
        lambda: context.reduce_scatter(other, one, loss_bound=bound),
        lambda: context.reduce(one, other, loss_bound=bound),
        lambda: context.scatter(other, one, loss_bound=bound),
    ]


def test_context__takes_a_bound_with_a_unit_in_every_call() -> None:
    pytest.importorskip("mlt._core")
    with mlt.Context(rank=0, world_size=1) as context:
        receive, *collectives = posts(context, "10%")
        with pytest.raises(mlt.UnknownPeerError):  # a rank alone has no peer; the bound has passed
            receive()
        for call in collectives:
            call()
        for given in BAD:
            for call in posts(context, given):
                with pytest.raises(mlt.ConfigError) as caught:
                    call()
                assert_names(str(caught.value), repr(given), "[0, 1)")
