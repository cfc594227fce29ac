"""``init`` and ``shutdown``, ``suspend`` and ``resume``, ranks and sizes, and the speed of push-pull."""

from __future__ import annotations

import os
from typing import Any

from mlt.torch.byteps import push_pull

from mlt._named import basics
from mlt._named.basics import local_rank, local_size, rank, shutdown, size

__all__ = ["get_pushpull_speed", "init", "local_rank", "local_size", "rank", "resume", "shutdown", "size", "suspend"]


def init(lazy: bool = True) -> None:
    """Connect all workers of the job, at once: ``lazy`` makes no difference. No-op in a job.

    Rank and size come from the launcher (``mlt.job.launchers``): torchrun, mpirun, srun, or BytePS's variables.
    """
    basics.init()


def suspend() -> None:
    """Leave the job, to ``resume`` in one of another size; all workers call it."""
    basics.shutdown()


def resume(num_workers: int, num_servers: int, global_rank: int, context: Any = None) -> None:
    """Join a job of this size under this rank, after ``suspend``. ``num_servers`` and ``context`` are not used.

    Tensors keep their names. Writes RANK and WORLD_SIZE.
    """
    os.environ["RANK"], os.environ["WORLD_SIZE"] = str(global_rank), str(num_workers)
    for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE"):  # of the old job; known again when the workers have connected
        os.environ.pop(name, None)
    init()


def get_pushpull_speed() -> tuple[int, float]:
    """Time in milliseconds, and MB/s that this worker gave to push-pull since the last call."""
    return push_pull.speed.take()
