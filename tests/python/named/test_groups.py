"""``mlt._named.groups``: which gradients are reduced together."""

from __future__ import annotations

from typing import Any

import pytest

from mlt._named.groups import chosen_groups, positions


def chosen(groups: Any, num_groups: int = 0) -> Any:
    return chosen_groups(groups, num_groups, lambda one: isinstance(one, str), "str")


def test_positions__of_a_number_are_consecutive_and_none_is_empty() -> None:
    assert positions(1, "abc") == [[0, 1, 2]]
    assert positions(3, "abcde") == [[0, 1], [2, 3], [4]]
    assert positions(9, "ab") == [[0], [1]]
    assert positions(2, "") == []


def test_positions__of_lists_keep_their_order_and_leave_out_what_is_not_there() -> None:
    assert positions([["d", "a"], ["x"], ["b", "y"]], "abcd") == [[3, 0], [1]]


def test_chosen_groups__takes_the_older_argument_with_a_warning() -> None:
    assert chosen(None) is None
    assert chosen(2) == 2
    assert chosen([("a", "b"), "c"]) == [["a", "b"], ["c"]]
    with pytest.warns(DeprecationWarning, match="num_groups"):
        assert chosen(None, 3) == 3
    with pytest.warns(DeprecationWarning, match="num_groups"):
        assert chosen([["a"]], 3) == [["a"]]


@pytest.mark.parametrize(
    ("groups", "text"), [(0, "positive integer"), (-1, "not -1"), ([[1]], "consist of str"), ([["a"], ["a"]], "once")]
)
def test_chosen_groups__rejects_what_makes_no_groups(groups: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        chosen(groups)
