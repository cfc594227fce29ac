"""Collectives of lists of tensors by torch.distributed, over gloo and over mlt by turns, between ranks of one host.

    python tests/bench/torch_verbs.py [--ranks 2,4] [--seconds 1.0] [--verbs gather,scatter]

Printed as a table: milliseconds of one call, from a common start to this rank's end, the median of the calls of the
slowest rank. A size is that of each tensor of the list. ``--seconds``: time of each cell and backend. Not a test: no
figure here is a promise.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from mlt._shared.units import SIZE

SIZES = ("4B", "64KiB", "1MiB", "16MiB")
VERBS = ("gather", "scatter", "all_gather", "reduce_scatter", "all_to_all")
_WARM_UP = 2
_MIN_CALLS = 5
_MAX_CALLS = 200


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", default="2,4", help="sizes of the group (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=1.0, help="of each cell and backend (default: %(default)s)")
    parser.add_argument("--sizes", default=",".join(SIZES))
    parser.add_argument("--verbs", default=",".join(VERBS))
    options = parser.parse_args()
    if "RANK" in os.environ:
        rank_main(options)
        return
    for size in options.ranks.split(","):
        with tempfile.TemporaryDirectory() as folder:
            os.environ["VERBS_STORE"] = os.path.join(folder, "store")
            ranks = [
                subprocess.Popen([sys.executable, *sys.argv], env={**os.environ, "RANK": str(rank), "WORLD_SIZE": size})
                for rank in range(int(size))
            ]
            if sum(rank.wait() != 0 for rank in ranks):
                sys.exit("a rank failed")


def rank_main(options: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", init_method=f"file://{os.environ['VERBS_STORE']}", rank=rank, world_size=size)
    groups = {"gloo": dist.group.WORLD, "mlt": dist.new_group(backend="mlt")}
    if rank == 0:
        print(f"\n{size} ranks\n\n| call | size | gloo | mlt | mlt / gloo |\n|---|---|---|---|---|", flush=True)
    for verb in options.verbs.split(","):
        for name in options.sizes.split(","):
            calls = {
                backend: call_of(verb, round(SIZE.named("size", name)) // 4, group) for backend, group in groups.items()
            }
            found = measure(calls, options.seconds)
            if rank == 0:
                gloo, mlt = (1e3 * found[backend] for backend in ("gloo", "mlt"))
                print(f"| {verb} | {name} | {gloo:.2f} | {mlt:.2f} | {mlt / gloo:.2f} |", flush=True)
    dist.destroy_process_group()


def call_of(verb: str, elements: int, group: dist.ProcessGroup | None) -> Callable[[], object]:
    """The call of one verb with tensors of that size."""
    rank, size = dist.get_rank(), dist.get_world_size()
    one, many = torch.full((elements,), float(rank)), [torch.ones(elements) for _ in range(size)]
    arrived = [torch.zeros(elements) for _ in range(size)]
    root = rank == 0
    calls: dict[str, Callable[[], object]] = {
        "gather": lambda: dist.gather(one, arrived if root else None, 0, group=group),
        "scatter": lambda: dist.scatter(one, many if root else None, 0, group=group),
        "all_gather": lambda: dist.all_gather(arrived, one, group=group),
        "reduce_scatter": lambda: dist.reduce_scatter(one, many, group=group),
        "all_to_all": lambda: dist.all_to_all(arrived, many, group=group),
    }
    return calls[verb]


def measure(calls: dict[str, Callable[[], object]], seconds: float) -> dict[str, float]:
    """Median seconds of each backend's call, of the slowest rank; the backends take turns."""
    found: dict[str, list[float]] = {backend: [] for backend in calls}
    count = torch.tensor([float(_MIN_CALLS)])
    for turn in range(_WARM_UP + 1):  # the last turn says how many calls the time is enough for
        for call in calls.values():
            dist.barrier()
            began = time.perf_counter()
            call()
            if turn == _WARM_UP:
                count = torch.maximum(count, torch.tensor([seconds / max(time.perf_counter() - began, 1e-6)]))
    count = torch.clamp(count, max=_MAX_CALLS)
    dist.all_reduce(count, op=dist.ReduceOp.MIN)
    for _ in range(max(int(count), _MIN_CALLS)):
        for backend, call in calls.items():
            dist.barrier()
            began = time.perf_counter()
            call()
            found[backend].append(time.perf_counter() - began)
    times = torch.tensor([list(one) for one in found.values()])
    dist.all_reduce(times, op=dist.ReduceOp.MAX)
    return {backend: statistics.median(row.tolist()) for backend, row in zip(calls, times, strict=True)}


if __name__ == "__main__":
    main()
