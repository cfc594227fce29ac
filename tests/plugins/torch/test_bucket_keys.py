"""Keys, names and layers of gradient buckets."""

from __future__ import annotations

import torch
from mlt.torch.bucket_keys import BucketKeys


def tensors(count: int) -> list[torch.Tensor]:
    return [torch.zeros(1) for _ in range(count)]


def test_keys__are_of_the_parameters_and_begin_at_the_first() -> None:
    a, b, c = tensors(3)
    keys = BucketKeys(7, {})
    assert keys.find([a, b]) is None
    assert [keys.add([a, b]), keys.add([c])] == [7, 8]
    assert [keys.find([a, b]), keys.find([c]), keys.find([b, a])] == [7, 8, None]


def test_label__names_up_to_three_parameters() -> None:
    known = tensors(5)
    keys = BucketKeys(0, {id(one): f"layer{i}" for i, one in enumerate(known)})
    assert keys.label(keys.add(known[:2])) == " (layer0, layer1)"
    assert keys.label(keys.add(known)) == " (layer0, layer1, layer2 and 2 more)"
    assert keys.label(keys.add(tensors(1))) == ""


def test_layer__the_last_bucket_is_the_front_layer() -> None:
    keys = BucketKeys(0, {})
    # The count is not known in the first step: each bucket may be the last.
    assert [keys.layer(index, index == 2) for index in range(3)] == [(0, 1), (0, 2), (0, 3)]
    assert [keys.layer(index, index == 2) for index in range(3)] == [(2, 3), (1, 3), (0, 3)]
    # DDP may group the parameters anew, in fewer buckets.
    assert [keys.layer(index, index == 1) for index in range(2)] == [(2, 3), (0, 2)]
