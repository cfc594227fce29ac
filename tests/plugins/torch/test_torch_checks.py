"""The arguments that a group's calls reject, before anything is sent."""

from __future__ import annotations

import pytest
import torch
from checks import names
from mlt.torch.checks import (
    check_configured,
    check_count,
    check_dense,
    check_root,
    check_transfer,
    parts_by_splits,
)
from mlt.torch.transfers import USER_TAGS


def test_device__of_another_backend_in_the_configuration_is_refused() -> None:
    cuda = torch.device("cuda:0")
    for backends in ("", "cpu:mlt,cuda:mlt", "cuda:mlt"):
        check_configured(backends, "mlt", cuda, "allreduce")
    for backends in ("cpu:mlt", "cpu:mlt,cuda:nccl"):
        with pytest.raises(TypeError, match=r"allreduce: a tensor on cuda:0 .*new_group"):
            check_configured(backends, "mlt", cuda, "allreduce")


def test_check_dense__names_layout_and_device() -> None:
    check_dense([torch.ones(2), torch.ones(2, 2).t()], "broadcast")
    for tensor, fact in ((torch.ones(2).to_sparse(), "sparse_coo"), (torch.ones(2, device="meta"), "meta")):
        with pytest.raises(TypeError, match=names("broadcast", fact)):
            check_dense([torch.ones(2), tensor], "broadcast")


def test_check_count__names_both_numbers() -> None:
    check_count([1, 2], 2, "gather", "output")
    with pytest.raises(ValueError, match=names("gather", "3 output tensors", "group of 2")):
        check_count([1, 2, 3], 2, "gather", "output")


@pytest.mark.parametrize(
    ("tag", "peer", "facts"),
    [
        (7, 1, ("tag 7", "dst is rank 1", "this rank itself", "another rank", "3")),
        (0, 3, ("rank 3", "no rank", "group of 3")),
        (0, -1, ("rank -1",)),
        (
            -1,
            2,
            (
                "to rank 2",
                "tag -1",
            ),
        ),
        (USER_TAGS, None, (f"tag {USER_TAGS}",)),
    ],
)
def test_check_transfer__names_the_rank_or_the_tag(tag: int, peer: int | None, facts: tuple[str, ...]) -> None:
    check_transfer("send", torch.ones(1), USER_TAGS - 1, 2, own=1, size=3)
    with pytest.raises(ValueError, match=names("send", *facts)):
        check_transfer("send", torch.ones(1), tag, peer, own=1, size=3)


def test_check_root__names_argument_and_ranks() -> None:
    check_root(1, 2, "broadcast", "src")
    for root in (2, 7, -1):
        with pytest.raises(ValueError, match=names("mlt reduce", f"dst is rank {root}", "2 ranks are 0 to 1")):
            check_root(root, 2, "reduce", "dst")


def test_parts_by_splits__cuts_rows() -> None:
    rows = torch.arange(12.0).reshape(6, 2)
    assert [len(part) for part in parts_by_splits(rows, [], 3, "input")] == [2, 2, 2]
    parts = parts_by_splits(rows, [1, 0, 5], 3, "input")
    assert torch.equal(torch.cat(parts), rows)
    for splits in ([], [0, 0]):
        assert [part.numel() for part in parts_by_splits(torch.zeros(0, 3), splits, 2, "input")] == [0, 0]
    with pytest.raises(ValueError, match=names("6 rows of the input", "4", "split sizes")):
        parts_by_splits(rows, [], 4, "input")
    for splits in ([1, 5], [1, 2, 4]):
        with pytest.raises(ValueError, match=names("input", str(splits), "3 numbers", "6")):
            parts_by_splits(rows, splits, 3, "input")
