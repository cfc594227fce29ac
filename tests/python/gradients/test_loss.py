"""Bounds around collectives, and schedules of bounds."""

from __future__ import annotations

import doctest
from typing import Any

import pytest
from checks import names

from mlt._gradients import loss


def test_examples() -> None:
    assert doctest.testmod(loss).failed == 0


def test_lossy__holds_inside_only_and_nests() -> None:
    assert loss.current_bound() == 0.0
    with loss.lossy(0.1):
        with loss.lossy(0.0):
            assert loss.current_bound() == 0.0
        assert loss.current_bound() == 0.1
    assert loss.current_bound() == 0.0


def test_bounds__may_be_text_with_a_unit() -> None:
    with loss.lossy("10%"):
        assert loss.current_bound() == 0.1
    assert loss.warm_up("1%", 5)(5, 0) == 0.01
    assert loss.phases((0, 0.0), (2, "0.2"))(2, 0) == 0.2
    assert loss.bound_at(loss.checked("20 %"), 0, 0) == 0.2
    schedule: Any = lambda step, layer: f"{step}%"  # noqa: E731
    assert loss.bound_at(loss.checked(schedule), 3, 0) == 0.03


@pytest.mark.parametrize("bound", [-0.1, 1.0, 7, "110%", "1", "10 %%", "some", True, None])
def test_bounds__outside_their_range_are_refused(bound: Any) -> None:
    for make in (loss.checked, lambda bound: loss.warm_up(bound, 5), lambda bound: loss.phases((0, bound))):
        with pytest.raises(ValueError, match=names(str(bound), "[0, 1)")):
            make(bound)
    with pytest.raises(ValueError, match="the loss bound"), loss.lossy(bound):
        pass


@pytest.mark.parametrize("steps", [-1, "3", 2.5, True, None])
def test_schedules__reject_what_is_no_number_of_steps(steps: object) -> None:
    with pytest.raises(ValueError, match=names("steps", repr(steps), "0 or more")):
        loss.warm_up(0.1, steps)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=names(repr(steps), "increasing steps")):
        loss.phases((0, 0.1), (steps, 0.2))  # type: ignore[arg-type]


@pytest.mark.parametrize("steps", [[], [1], [0, 5, 5], [0, 9, 3]])
def test_phases__start_at_0_and_increase(steps: list[int]) -> None:
    with pytest.raises(ValueError, match=names(steps)):
        loss.phases(*((step, 0.1) for step in steps))
