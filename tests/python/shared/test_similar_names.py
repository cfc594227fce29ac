"""Suggestions for a wrong name."""

from __future__ import annotations

import pytest

from mlt._shared.similar_names import did_you_mean, nearest


@pytest.mark.parametrize(
    ("name", "members", "found"),
    [
        ("lanch", ["plan", "launch", "perf"], ["launch"]),
        ("test", ["testbed", "launch"], ["testbed"]),
        ("p", ["plan", "perf", "launch"], ["plan", "perf"]),
        ("--polcy", ["--policy", "--port"], ["--policy"]),
        ("--policy", ["--pin", "--port"], []),
        ("", ["plan"], []),
    ],
)
def test_nearest__is_what_is_abbreviated_or_most_similar(name: str, members: list[str], found: list[str]) -> None:
    assert nearest(name, members) == found


def test_nearest__ignores_the_case_of_letters() -> None:
    assert nearest("Gloo", ["tcp", "gloo"]) == ["gloo"]
    assert nearest("glo", ["GLOO"]) == ["GLOO"]


def test_did_you_mean__names_what_is_like_it_or_nothing() -> None:
    assert did_you_mean("torc", ["jax", "torch", "torchft"], before=" ") == " did you mean 'torch' or 'torchft'?"
    assert did_you_mean("zzz", ["jax", "torch"]) == ""
