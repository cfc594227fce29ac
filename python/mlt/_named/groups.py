"""Groups of gradients that are reduced together: Horovod's argument ``groups``."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Sequence
from itertools import pairwise
from typing import Any


def chosen_groups(groups: Any, num_groups: int, is_variable: Callable[[Any], bool], variables: str) -> Any:
    """The groups from the arguments ``groups`` and, as long ago, ``num_groups``; None: there are none.

    ``is_variable``: a function that is true for what a group may hold; ``variables``: its name in errors. Raises
    ValueError for a number below 1, members that are no variables, and members of two groups.
    """
    if num_groups != 0:
        warnings.warn("Parameter `num_groups` has been replaced by `groups`", DeprecationWarning, stacklevel=3)
        groups = num_groups if groups is None else groups
    if groups is None:
        return None
    if isinstance(groups, int):
        if groups <= 0:
            raise ValueError(f"groups should be a positive integer or a list of list of {variables}, not {groups}.")
        return groups
    listed: set[int] = set()
    for one in (one for group in groups for one in group):
        if not is_variable(one):
            raise ValueError(f"groups must consist of {variables}.")
        if id(one) in listed:
            raise ValueError("A variable can only appear once in groups.")
        listed.add(id(one))
    return [list(group) for group in groups]


def positions(groups: int | Sequence[Sequence[Hashable]], keys: Sequence[Hashable]) -> list[list[int]]:
    """The positions of ``keys`` by group, without empty groups.

    A number of groups: consecutive keys, the first groups have one more if they differ. Keys that no group lists are in
    none.

    >>> positions(2, "abcde"), positions(["ca", "x"], "abc")
    ([[0, 1, 2], [3, 4]], [[2, 0]])
    """
    if isinstance(groups, int):
        count, rest = divmod(len(keys), groups)
        starts = [i * count + min(i, rest) for i in range(groups + 1)]
        found = [list(range(start, end)) for start, end in pairwise(starts)]
    else:
        known = {key: position for position, key in enumerate(keys)}
        found = [[known[key] for key in group if key in known] for group in groups]
    return [group for group in found if group]
