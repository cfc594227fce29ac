"""GRID's rounding: every reading uses what the fractions allow, and enforced capacity holds."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import get_args

import pytest

from studies.aro.grid_rounding import DIRECT, Rounding, enforce_capacity, round_shares

BY_LEAF = {"leaf-0": [f"a{i}" for i in range(40)], "leaf-1": [f"b{i}" for i in range(10)]}
SHARES = {"leaf-0": {"spine-0": 30.0, "spine-1": 6.0, DIRECT: 4.0}, "leaf-1": {"leaf-1": 0.0, "spine-0": 10.0}}


@pytest.mark.parametrize("rounding", get_args(Rounding))
def test_round_shares__everyone_gets_what_has_a_share(rounding: Rounding) -> None:
    chosen = round_shares(BY_LEAF, SHARES, Random(1), rounding=rounding)
    assert list(chosen) == [*BY_LEAF["leaf-0"], *BY_LEAF["leaf-1"]]
    assert {chosen[name] for name in BY_LEAF["leaf-1"]} <= {"spine-0", DIRECT}
    assert set(chosen.values()) <= {"spine-0", "spine-1", DIRECT}
    assert chosen == round_shares(BY_LEAF, SHARES, Random(1), rounding=rounding)


def test_round_shares__most_takes_the_largest() -> None:
    assert set(round_shares(BY_LEAF, SHARES, Random(1), rounding="most").values()) == {"spine-0"}


def test_round_shares__draws_in_proportion() -> None:
    drawn = Counter(
        round_shares(BY_LEAF, SHARES, Random(seed), rounding="draw")[name]
        for seed in range(50)
        for name in BY_LEAF["leaf-0"]
    )
    assert drawn["spine-0"] / drawn.total() == pytest.approx(0.75, abs=0.04)
    assert drawn["spine-1"] / drawn.total() == pytest.approx(0.15, abs=0.04)


def test_round_shares__closed_aggregators_are_not_used() -> None:
    for seed in range(30):
        for rounding in ("open", "open or straight"):
            used = set(round_shares(BY_LEAF, SHARES, Random(seed), rounding=rounding).values())  # type: ignore[arg-type]
            # spine-0 has all of leaf-1 and is always open; spine-1 with probability 0.15.
            assert "spine-0" in used
    open_runs = [set(round_shares(BY_LEAF, SHARES, Random(s), rounding="open or straight").values()) for s in range(99)]
    assert 4 <= sum("spine-1" in used for used in open_runs) <= 30


def test_enforce_capacity__the_rest_goes_straight() -> None:
    chosen = round_shares(BY_LEAF, SHARES, Random(3), rounding="most")
    limited = enforce_capacity(chosen, 32, Random(3))
    assert Counter(limited.values()) == {"spine-0": 32, DIRECT: 18}
    assert list(limited) == list(chosen)
    assert enforce_capacity(chosen, 50, Random(3)) == chosen
