"""Wrong arguments of ``BoundedLossState``."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from checks import names
from mlt.torch import BoundedLossState

import mlt


@pytest.mark.parametrize(
    ("transport", "facts"),
    [
        (0.1, ("transport is 0.1", "BoundedLossState(loss_bound=0.1)")),
        ("10%", ("transport is '10%'", "BoundedLossState(loss_bound='10%')")),
        (torch.nn.Linear(1, 1), ("Linear", "register_comm_hook")),
        ([1], ("transport is [1]", "process group", "Context", "PushPull")),
    ],
)
def test_state__rejects_what_is_no_transport(transport: Any, facts: tuple[str, ...]) -> None:
    with pytest.raises(TypeError, match=names("BoundedLossState", *facts)):
        BoundedLossState(transport)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"rotate": "no"}, ValueError),
        ({"services": "no"}, ValueError),
        ({"first_key": -1}, ValueError),
        ({"first_key": "a"}, ValueError),
        ({"history": "x"}, ValueError),
        ({"log_every": 0}, ValueError),
        ({"log_every": True}, ValueError),
        ({"named_parameters": torch.nn.Linear(1, 1).parameters()}, TypeError),
        ({"max_norm_ratio": 1}, ValueError),
        ({"max_norm_ratio": True}, ValueError),
        ({"max_norm_ratio": float("nan")}, ValueError),
        ({"max_dropped": -1}, ValueError),
        ({"max_dropped": 1}, ValueError),
    ],
)
def test_state__rejects_wrong_options(options: dict[str, Any], error: type[Exception]) -> None:
    with mlt.Context(0, 1) as context, pytest.raises(error, match=names(*options)):
        BoundedLossState(context, **options)


def test_state__each_has_a_name_of_its_own_in_the_flight_recorder() -> None:
    with mlt.Context(0, 1) as context:
        first, second = BoundedLossState(context)._recorded_as, BoundedLossState(context)._recorded_as
    assert first.startswith("bounded_loss_hook")
    assert first != second
