"""The far side of the benchmarks: a child process that answers each transfer with a short reply.

Run as ``python peer.py mlt|gloo SIZE ROUNDS LOSS_BOUND`` with RANK=1 and the usual environment. The tensor is received
whole, touched before, and compared with what must have come before the first reply; the reply is 8 bytes.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

SEGMENT_BYTES = 1440
PATTERN_SEED = 7


def pattern(size: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """The tensor that is sent: float32 values that differ from place to place, none of them zero."""
    return (np.arange(size // 4, dtype=np.float32) % 251) + 1


def open_mlt(rank: int) -> Any:
    import mlt

    return mlt.Context(rank=rank, world_size=2, segment_bytes=SEGMENT_BYTES)


def sender(kind: str, size: int) -> tuple[Callable[[], float], Callable[[], None]]:
    """Return (one timed round in seconds: send, wait for the reply), and a close function. This is rank 0."""
    data, reply = pattern(size), np.zeros(8, np.uint8)
    if kind == "mlt":
        ctx = open_mlt(0)

        def once() -> float:
            start = time.perf_counter()
            back = ctx.post_recv(reply, from_=1, tag=2)
            sent = ctx.post_send(data, to=1, tag=1)
            ctx.wait(back)
            elapsed = time.perf_counter() - start
            ctx.wait(sent)
            return elapsed

        return once, ctx.close
    import torch.distributed as dist

    import torch

    dist.init_process_group("gloo", rank=0, world_size=2)
    tensor, answer = torch.from_numpy(data), torch.from_numpy(reply)

    def once_gloo() -> float:
        start = time.perf_counter()
        dist.send(tensor, 1)
        dist.recv(answer, 1)
        return time.perf_counter() - start

    return once_gloo, dist.destroy_process_group


def receive(kind: str, size: int, rounds: int, loss_bound: float) -> None:
    """Rank 1: receive ``rounds`` tensors, answer each."""
    data, reply = np.full(size // 4, -1, np.float32), np.ones(8, np.uint8)
    expected = pattern(size)
    if kind == "mlt":
        ctx = open_mlt(1)
        posted = ctx.post_recv(data, loss_bound, from_=0, tag=1)
        for i in range(rounds):
            ctx.wait(posted)
            if i == 0 and not np.array_equal(data, expected):
                raise SystemExit("mlt: the tensor did not arrive whole")
            # The next receive is posted before the reply that allows the next send, as a training loop does.
            if i + 1 < rounds:
                posted = ctx.post_recv(data, loss_bound, from_=0, tag=1)
            ctx.wait(ctx.post_send(reply, to=0, tag=2))
        ctx.close()
        return
    import torch.distributed as dist

    import torch

    dist.init_process_group("gloo", rank=1, world_size=2)
    tensor, answer = torch.from_numpy(data), torch.from_numpy(reply)
    for i in range(rounds):
        dist.recv(tensor, 0)
        if i == 0 and not np.array_equal(data, expected):
            raise SystemExit("gloo: the tensor did not arrive whole")
        dist.send(answer, 0)
    dist.destroy_process_group()


if __name__ == "__main__":
    receive(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
