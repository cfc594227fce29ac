"""Two ranks that all-reduce the same tensor over mlt and over gloo, in turns. Rank 1 is this file as a program.

Run as ``python group.py SIZE ROUNDS`` with RANK=1 and the usual environment. A round: both ranks meet at a barrier, one
library sums, the clock stops; then, outside the timing, the sum is compared with what it must be and spoilt again.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np

RANKS = 2


def pattern(size: int, rank: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Small integers that differ from place to place and rank to rank: their sums are exact."""
    return (np.arange(size // 4, dtype=np.float32) * (rank + 1)) % 251


class Group:
    """This rank's contexts of both libraries, and the tensors that they sum."""

    def __init__(self, rank: int, size: int) -> None:
        import torch
        import torch.distributed as dist

        import mlt

        torch.set_num_threads(1)
        self._dist = dist
        self._context = mlt.Context(rank=rank, world_size=RANKS)
        self._op = mlt.Reduction.SUM
        dist.init_process_group("gloo", rank=rank, world_size=RANKS)
        self._own = pattern(size, rank)
        self._sum = sum((pattern(size, other) for other in range(1, RANKS)), pattern(size, 0))
        self._data = self._own.copy()
        self._tensor = torch.from_numpy(self._data)

    def once(self, library: str) -> float:
        """Seconds that one all-reduce took here."""
        np.copyto(self._data, self._own)
        self._dist.barrier()
        start = time.perf_counter()
        if library == "mlt":
            self._context.all_reduce(self._data, op=self._op)
        else:
            self._dist.all_reduce(self._tensor)
        elapsed = time.perf_counter() - start
        if not np.array_equal(self._data, self._sum):
            raise SystemExit(f"{library}: the sum is wrong")
        return elapsed

    def close(self) -> None:
        self._context.close()
        self._dist.destroy_process_group()


if __name__ == "__main__":
    group = Group(1, int(sys.argv[1]))
    for _ in range(int(sys.argv[2])):
        group.once("gloo")
        group.once("mlt")
    group.close()
