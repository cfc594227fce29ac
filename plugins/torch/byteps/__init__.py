"""BytePS's API over mlt: ``import mlt.torch.byteps as bps`` in place of ``import byteps.torch as bps``.

The workers sum among themselves, by the controller of ``mlt.torch.horovod``: tensors match by name, also without
``declare``. docs/horovod.md has what differs from BytePS.
"""

from __future__ import annotations

from mlt.torch.byteps import cross_barrier, parallel
from mlt.torch.byteps.push_pull import (
    byteps_torch_set_num_grads,
    declare,
    poll,
    push_pull,
    push_pull_async,
    push_pull_async_inplace,
    push_pull_group_sync_inplace,
    push_pull_inplace,
    synchronize,
)
from mlt.torch.byteps.push_pull import push_pull_async_inplace as byteps_push_pull
from mlt.torch.byteps.training import (
    DistributedOptimizer,
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
)
from mlt.torch.horovod.compression import Compression

from mlt._named.byteps import (
    get_pushpull_speed,
    init,
    local_rank,
    local_size,
    rank,
    resume,
    shutdown,
    size,
    suspend,
)

__all__ = [
    "Compression",
    "DistributedOptimizer",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "byteps_push_pull",
    "byteps_torch_set_num_grads",
    "cross_barrier",
    "declare",
    "get_pushpull_speed",
    "init",
    "local_rank",
    "local_size",
    "parallel",
    "poll",
    "push_pull",
    "push_pull_async",
    "push_pull_async_inplace",
    "push_pull_group_sync_inplace",
    "push_pull_inplace",
    "rank",
    "resume",
    "shutdown",
    "size",
    "suspend",
    "synchronize",
]
