"""``BucketKeys``: identifies DDP's gradient buckets from step to step: a key, a name for errors, and the layer."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Final

import torch

_SHOWN_NAMES: Final = 3


class BucketKeys:
    """A key per set of parameters, numbered from ``first_key`` in order of first appearance.

    DDP regroups the parameters after the first backward pass, so a bucket's index does not identify its content. The
    service needs the same element count under a key every time. Every rank has the same buckets in the same order, and
    so gives them the same keys. ``names``: of parameters, by identity.
    """

    def __init__(self, first_key: int, names: Mapping[int, str]) -> None:
        self._next_key = first_key
        self._names = names
        self._keys: dict[Hashable, int] = {}
        self._labels: dict[int, str] = {}  # by key
        self._bucket_count = 0

    def find(self, parameters: Sequence[torch.Tensor]) -> int | None:
        """The key of these parameters; None if they had none so far."""
        return self._keys.get(_identity(parameters))

    def add(self, parameters: Sequence[torch.Tensor]) -> int:
        """Give these parameters the next key."""
        identity = _identity(parameters)
        key = self._keys[identity] = self._next_key
        self._next_key += 1
        self._labels[key] = self.label_of(parameters)
        return key

    def label(self, key: int) -> str:
        """``label_of`` a key's parameters."""
        return self._labels[key]

    def label_of(self, parameters: Sequence[torch.Tensor]) -> str:
        """The names of parameters, in brackets after a space; empty if they are not known."""
        names = [self._names[one] for one in _identity(parameters) if one in self._names]
        more = f" and {len(names) - _SHOWN_NAMES} more" if len(names) > _SHOWN_NAMES else ""
        return f" ({', '.join(names[:_SHOWN_NAMES])}{more})" if names else ""

    def layer(self, index: int, is_last: bool) -> tuple[int, int]:
        """Bucket index to (layer, layers): the last bucket holds the front layers, which the next forward needs first.

        The bucket count is known with the last bucket; until then the previous step's count is used.
        """
        if is_last:
            self._bucket_count = index + 1
        layers = max(self._bucket_count, index + 1)
        return layers - 1 - index, layers


def _identity(parameters: Sequence[torch.Tensor]) -> tuple[int, ...]:
    return tuple(id(parameter) for parameter in parameters)
