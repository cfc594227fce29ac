"""The cost of critical segments: transfers of 1 MiB with shares of critical segments, in turns (docs/priorities.md).

Takes a minute or two:

mlt testbed run --hosts 2 --rate 200mbit --loss 1% --delay 5ms -- python examples/critical_segments.py
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

import mlt
from mlt.priority import PriorityFunction, SegmentGrid, SegmentPriorities

# Name, share of critical segments (None: one segment), loss bound.
CASES: tuple[tuple[str, float | None, float], ...] = (
    ("none", 0.0, 0.1), ("one", None, 0.1), ("1 %", 0.01, 0.1), ("10 %", 0.1, 0.1), ("all", 1.0, 0.1),
    ("none, bound 0", 0.0, 0.0),
)  # fmt: skip
ROUNDS, UNTIMED = 80, 5


def spread(share: float | None) -> PriorityFunction:
    """Critical segments at equal distances."""

    def tag(_tensor: Any, grid: SegmentGrid) -> SegmentPriorities:
        count = 1 if share is None else round(share * grid.segment_count)
        critical = np.zeros(grid.segment_count, np.bool_)
        critical[np.linspace(0, grid.segment_count - 1, count).astype(int)] = True
        return SegmentPriorities(important=critical, critical=critical)

    return tag


def main() -> None:
    """Rank 0 sends, rank 1 measures from its request to the completion, and prints."""
    data = np.ones(1 << 18, np.float32)
    request = np.zeros(1, np.int32)
    times: dict[str, list[float]] = {name: [] for name, *_ in CASES}
    lost: dict[str, list[float]] = {name: [] for name, *_ in CASES}
    with mlt.Context() as context:
        for i in range(ROUNDS):
            if context.rank == 1 and i % 20 == 0:
                print(f"round {i} of {ROUNDS}", flush=True)
            for name, share, bound in CASES:
                if context.rank == 0:
                    context.wait(context.post_recv(request, from_=1, tag=2))
                    context.wait(context.post_send(data, spread(share), to=1, tag=1))
                    continue
                receive = context.post_recv(data, loss_bound=bound, from_=0, tag=1)
                began = time.perf_counter()
                context.wait(context.post_send(request, to=0, tag=2))
                done = context.wait(receive)
                times[name].append((time.perf_counter() - began) * 1e3)
                lost[name].append(done.loss_fraction)
        for name in times if context.rank == 1 else ():
            p50, p90, p99 = np.percentile(times[name][UNTIMED:], [50, 90, 99])
            print(f"{name:14} p50 {p50:6.1f}  p90 {p90:6.1f}  p99 {p99:6.1f} ms, lost {np.mean(lost[name]):.2%}")


if __name__ == "__main__":
    main()
