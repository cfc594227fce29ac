"""The search for a path's MTU, over paths that are made up."""

from __future__ import annotations

import random

import pytest

from mlt.diagnosis.path_mtu import Attempt, PathMtu, find

ROUTER = "10.0.0.254"


class Path:
    """Carries packets of ``mtu`` bytes; a router reports so, or none does."""

    def __init__(self, mtu: int, *, tells: bool) -> None:
        self.mtu, self.tells = mtu, tells
        self.asked: list[int] = []

    def __call__(self, size: int) -> Attempt:
        self.asked.append(size)
        if size <= self.mtu:
            return Attempt(True)
        return Attempt(False, self.mtu, ROUTER) if self.tells else Attempt(False)


def test_find__a_path_that_carries_all_costs_one_attempt() -> None:
    path = Path(9_000, tells=False)
    assert find(path, 576, 9_000) == PathMtu(9_000, True)
    assert path.asked == [9_000]


@pytest.mark.parametrize("mtu", [577, 1_279, 1_280, 1_400, 1_499])
def test_find__a_router_that_speaks_is_believed_and_checked(mtu: int) -> None:
    path = Path(mtu, tells=True)
    assert find(path, 576, 1_500) == PathMtu(mtu, False, ROUTER)
    assert len(path.asked) <= 4
    assert mtu + 1 in path.asked


def test_find__a_router_that_lies_is_not_believed() -> None:
    def attempt(size: int) -> Attempt:
        return Attempt(True) if size <= 1_300 else Attempt(False, 1_400, ROUTER)

    assert find(attempt, 576, 1_500) == PathMtu(1_300, False, "")


def test_find__a_black_hole_by_halves() -> None:
    draw = random.Random(7)
    for _ in range(200):
        minimum, maximum = 576, draw.randrange(600, 65_536)
        mtu = draw.randrange(minimum, maximum)
        path = Path(mtu, tells=False)
        assert find(path, minimum, maximum) == PathMtu(mtu, False, "")
        assert len(path.asked) <= 18


def test_find__a_right_hint_saves_the_search() -> None:
    path = Path(1_400, tells=False)
    assert find(path, 576, 9_000, hint=1_400) == PathMtu(1_400, False, "")
    assert path.asked == [9_000, 576, 1_400, 1_401]


@pytest.mark.parametrize("hint", [0, 100, 576, 9_000, 20_000, 1_300, 1_500])
def test_find__a_wrong_hint_does_no_harm(hint: int) -> None:
    assert find(Path(1_400, tells=False), 576, 9_000, hint=hint).packet == 1_400


def test_find__a_path_that_carries_nothing() -> None:
    path = Path(100, tells=False)
    assert find(path, 576, 1_500) == PathMtu(0, False)
    assert len(path.asked) == 2
