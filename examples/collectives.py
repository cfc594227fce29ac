"""Every collective once.

Run as ``mlt launch -n 4 python examples/collectives.py``, or on each rank with RANK, WORLD_SIZE and MASTER_ADDR.
"""

from __future__ import annotations

import numpy as np

import mlt


def main() -> None:
    with mlt.Context() as ctx:
        rank, ranks = ctx.rank, ctx.world_size

        gradient = np.full(1_000_000, rank, np.float32)
        ctx.all_reduce(gradient)  # the mean, in place
        assert (gradient == (ranks - 1) / 2).all()
        step = np.array([rank], np.int64)
        ctx.all_reduce(step, op=mlt.Reduction.MAX)
        assert step[0] == ranks - 1
        layers = [np.full(size, rank, np.float32) for size in (10, 200, 30)]
        ctx.all_reduce(layers)  # many small tensors, as one
        assert all((layer == (ranks - 1) / 2).all() for layer in layers)

        rows = np.arange(4 * ranks, dtype=np.int32) + 100 * rank
        mine = np.empty(4, np.int32)
        ctx.reduce_scatter(mine, rows, op=mlt.Reduction.SUM)  # this rank's part of the sum
        everything = np.empty(4 * ranks, np.int32)
        ctx.all_gather(everything, mine)  # all parts, at every rank
        assert (everything == ranks * np.arange(4 * ranks) + 100 * ranks * (ranks - 1) // 2).all()

        received = np.empty_like(rows)
        ctx.all_to_all(received, rows)  # four values to and from each rank
        assert received[0] == 4 * rank

        weights = np.full(1_000, 7.0) if rank == 0 else np.empty(1_000)
        ctx.broadcast(weights, root=0)
        assert (weights == 7).all()
        share = np.empty(1)
        ctx.scatter(share, np.arange(ranks, dtype=np.float64) if rank == 0 else None, root=0)
        assert share[0] == rank

        shares = np.empty(ranks) if rank == 0 else None
        ctx.gather(share, shares, root=0)
        total = np.empty(1) if rank == 0 else None
        ctx.reduce(share, total, op=mlt.Reduction.SUM, root=0)
        if shares is not None and total is not None:
            assert total[0] == shares.sum() == ranks * (ranks - 1) / 2

        ctx.barrier()
        print(f"rank {rank} of {ranks}: every collective is right")


if __name__ == "__main__":
    main()
