"""All-reduces of many tensors between two ranks, by turns: as a list, each on its own, and gloo's coalesced one.

    python tests/bench/tensor_list.py [--rounds 50] [--turns 5]

Printed as a table: milliseconds of a round that reduces all tensors of a row, medians. All of those posted on their own
are under way at once. The datapath is what MLT_DATAPATH says. Not a test: no figure here is a promise.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
import two_ranks

import mlt
from mlt._shared.units import SIZE

ROWS = [(80, "256B"), (80, "4KiB"), (80, "64KiB"), (40, "256KiB"), (20, "1MiB")]  # tensors, size of each
_WARM_UP = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=50, help="rounds of each kind, all turns (default: %(default)s)")
    parser.add_argument("--turns", type=int, default=5, help="number of turns (default: %(default)s)")
    options = parser.parse_args()
    rank = two_ranks.own_rank()
    if rank is None:
        with tempfile.TemporaryDirectory() as folder:
            os.environ["TENSOR_LIST_STORE"] = os.path.join(folder, "store")
            two_ranks.launch(__file__, sys.argv[1:])
        return
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{os.environ['TENSOR_LIST_STORE']}", rank=rank, world_size=2
    )  # fmt: skip
    if rank == 0:
        print("| tensors | as a list | each on its own | gloo, coalesced |\n|---|---|---|---|")
    with mlt.Context(job="tensor-list") as context:
        for count, size in ROWS:
            tensors = [torch.ones(round(SIZE.named("size", size)) // 4) for _ in range(count)]
            medians = measure(kinds_of(context, tensors), context, options.rounds, options.turns)
            if rank == 0:
                print(
                    f"| {count} of {size} | {' | '.join(f'{1e3 * median:.2f} ms' for median in medians)} |", flush=True
                )
    dist.destroy_process_group()


def kinds_of(context: mlt.Context, tensors: list[torch.Tensor]) -> list[Callable[[], object]]:
    """Functions that reduce all of them, one for each column."""

    def each() -> None:
        for operation in [context.post_all_reduce(tensor) for tensor in tensors]:
            operation.wait()

    return [lambda: context.all_reduce(tensors), each, lambda: dist.all_reduce_coalesced(tensors)]


def measure(kinds: list[Callable[[], object]], context: mlt.Context, rounds: int, turns: int) -> list[float]:
    """Median seconds of each kind; a turn has rounds of all kinds."""
    found: list[list[float]] = [[] for _ in kinds]
    for _ in range(turns):
        for seconds, reduce_all in zip(found, kinds, strict=True):
            for index in range(_WARM_UP + max(rounds // turns, 1)):
                context.barrier()
                began = time.perf_counter()
                reduce_all()
                if index >= _WARM_UP:
                    seconds.append(time.perf_counter() - began)
    return [statistics.median(seconds) for seconds in found]


if __name__ == "__main__":
    main()
