"""The backend "mlt" as torch.distributed knows it."""

from __future__ import annotations

from typing import Any

import mlt.torch
import pytest
import torch
import torch.distributed as dist
from checks import names
from mlt.torch.process_group_base import BACKEND
from mlt.torch.registration import mlt_group


def test_register_backend__is_known_to_torch_and_may_be_repeated() -> None:
    mlt.torch.register_backend()
    assert BACKEND in dist.Backend.backend_list


class Group:
    """A process group of torch's whose backend is gloo."""

    def _get_backend(self, device: torch.device) -> Any:
        store: Any = dist.HashStore()  # type: ignore[no-untyped-call]
        return dist.ProcessGroupGloo(store, 0, 1)


def test_mlt_group__rejects_another_backend_and_names_the_user() -> None:
    group: Any = Group()
    with pytest.raises(TypeError, match=names("BoundedLossState", "gloo", '"mlt"')):
        mlt_group(group, "BoundedLossState")
