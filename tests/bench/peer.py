"""The far side of the benchmarks: a child process that answers each transfer with a short reply.

Run as ``python peer.py mlt|mlt-untagged|gloo SIZE ROUNDS`` with RANK=1 and the usual environment. A round: the tensor
arrives in a buffer that was touched and holds something else, an 8-byte reply goes back, and the clock stops. Then,
outside the timing, the tensor is compared with what must have come, the buffer is spoilt again, the next receive is
posted, and a second short message says so.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

SEGMENT_BYTES = 1440


def pattern(size: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """The tensor that is sent: float32 values that differ from place to place, none of them zero."""
    return (np.arange(size // 4, dtype=np.float32) % 251) + 1


def open_mlt(rank: int) -> Any:
    import mlt

    return mlt.Context(rank=rank, world_size=2, segment_bytes=SEGMENT_BYTES)


def ctx_policy(kind: str) -> Any:
    """The priority function of a kind: the default (by magnitude), or none worth the name."""
    import mlt

    return mlt.priority.all_important if kind == "mlt-untagged" else None


def sender(kind: str, size: int) -> tuple[Callable[[], float], Callable[[], None]]:
    """Return (one timed round in seconds: send, wait for the reply), and a close function. This is rank 0."""
    data, reply = pattern(size), np.zeros(8, np.uint8)
    if kind.startswith("mlt"):
        ctx = open_mlt(0)
        # By default values are sampled and segments get priorities by magnitude, for switches; gloo has none.
        policy = ctx_policy(kind)

        def once() -> float:
            start = time.perf_counter()
            back = ctx.post_recv(reply, from_=1, tag=2)
            sent = ctx.post_send(data, policy, to=1, tag=1)
            ctx.wait(back)
            elapsed = time.perf_counter() - start
            ctx.wait(sent)
            ctx.wait(ctx.post_recv(reply, from_=1, tag=3))
            return elapsed

        return once, ctx.close
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo", rank=0, world_size=2)
    tensor, answer = torch.from_numpy(data), torch.from_numpy(reply)

    def once_gloo() -> float:
        start = time.perf_counter()
        dist.send(tensor, 1)
        dist.recv(answer, 1)
        elapsed = time.perf_counter() - start
        dist.recv(answer, 1)
        return elapsed

    return once_gloo, dist.destroy_process_group


def receive(kind: str, size: int, rounds: int) -> None:
    """Rank 1: receive ``rounds`` tensors, answer and verify each."""
    data, reply = np.full(size // 4, -1, np.float32), np.ones(8, np.uint8)
    expected = pattern(size)

    def verify_and_spoil() -> None:
        if not np.array_equal(data, expected):
            raise SystemExit(f"{kind}: the tensor did not arrive whole")
        data.fill(-1)

    if kind.startswith("mlt"):
        with open_mlt(1) as ctx:
            posted = ctx.post_recv(data, from_=0, tag=1)
            for i in range(rounds):
                ctx.wait(posted)
                ctx.wait(ctx.post_send(reply, to=0, tag=2))
                verify_and_spoil()
                if i + 1 < rounds:
                    posted = ctx.post_recv(data, from_=0, tag=1)
                ctx.wait(ctx.post_send(reply, to=0, tag=3))
        return
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo", rank=1, world_size=2)
    tensor, answer = torch.from_numpy(data), torch.from_numpy(reply)
    for _ in range(rounds):
        dist.recv(tensor, 0)
        dist.send(answer, 0)
        verify_and_spoil()
        dist.send(answer, 0)
    dist.destroy_process_group()


if __name__ == "__main__":
    receive(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
