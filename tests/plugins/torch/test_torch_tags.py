"""The tags of a group's transfers: no two groups or kinds share one."""

from __future__ import annotations

from itertools import pairwise

import pytest
from mlt.torch import tags
from mlt.torch.tags import GroupTags, with_user_tags
from mlt.torch.transfers import USER_TAGS


@pytest.fixture(autouse=True)
def no_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tags, "_names", {})


def test_group_tags__tells_groups_apart() -> None:
    names = [*map(str, range(3_000)), *(f"group {i}" for i in range(3_000))]
    found = [GroupTags(name) for name in names]
    for kind in ("point_to_point", "barriers", "stream"):
        assert len({getattr(one, kind) for one in found}) == len(names)


def test_group_tags__kinds_do_not_overlap() -> None:
    for name in ("0", "7", str((1 << 28) - 1), "hashed"):
        one = GroupTags(name)
        begin_and_count = [(one.barriers, 256), (one.point_to_point, USER_TAGS)]
        for (begin, count), (following, _) in pairwise(begin_and_count):
            assert begin + count <= following
        assert one.point_to_point + USER_TAGS < 2**63
        assert 0 < one.stream < 2**32


def test_with_user_tags__shows_what_the_program_gave() -> None:
    tags = GroupTags("3")
    assert with_user_tags(f"send of tag {tags.point_to_point + 70_000} (16 bytes)") == "send of tag 70000 (16 bytes)"
    barrier = f"receive of tag {tags.barriers}"
    assert with_user_tags(barrier) == barrier


def test_group_tags__a_shared_number_is_rejected() -> None:
    GroupTags("hashed")
    (taken,) = tags._names
    tags._names[taken] = "another"
    with pytest.raises(ValueError, match="'another' and 'hashed'"):
        GroupTags("hashed")
