"""The backend "mlt" as ``torch.distributed`` knows it: its registration, and the groups that torch makes of it."""

from __future__ import annotations

from typing import Any

from mlt.torch import contexts, recorder
from mlt.torch.group_options import options_of
from mlt.torch.process_group import MltProcessGroup
from mlt.torch.process_group_base import BACKEND

import torch
import torch.distributed as dist
from mlt.errors import ConfigError, RendezvousError


def register_backend() -> None:
    """Register "mlt" with ``torch.distributed``; called by ``import mlt.torch``. Idempotent."""
    if BACKEND.upper() not in dist.Backend._plugins:
        dist.Backend.register_backend(BACKEND, _create, extended_api=True, devices=["cpu", "cuda"])


def mlt_group(group: dist.ProcessGroup, user: str) -> MltProcessGroup:
    """torch's process group as this backend's; raises TypeError, which names its ``user``, for any other backend's."""
    found = group if isinstance(group, MltProcessGroup) else group._get_backend(torch.device("cpu"))
    if not isinstance(found, MltProcessGroup):
        raise TypeError(
            f"{user}: the process group's backend is {found.name()}, and only sums of mlt can lose anything: give it a "
            f'group of backend "{BACKEND}", or leave it out'
        )
    return found


def _create(options: Any, backend_options: object) -> MltProcessGroup:
    """Called by ``init_process_group`` and ``new_group``, with their ``pg_options``."""
    own_options = options_of(backend_options)  # wrong ones are an error before this rank waits for another
    try:
        recorder.check()
        membership = contexts.join(options, checksums=own_options.checksums)
    except (ConfigError, RendezvousError) as error:
        raise error.with_traceback(None) from None  # as of Context()
    return MltProcessGroup(
        membership.context,
        rank=options.group_rank,
        ranks=membership.ranks,
        group_id=options.group_id,
        timeout=options.timeout,
        owns_context=membership.owns_context,
        options=own_options,
    )
