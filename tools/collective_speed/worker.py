"""One rank of a measurement: ``worker.py both ...`` (mlt and gloo in turns) or ``worker.py mpi ...`` under mpirun."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from calls import VERBS, Call, of_gloo, of_mlt, of_mpi

BLOCKS, FIRST_CALLS = 5, 2


@dataclass(frozen=True)
class Together:
    """The steps that the ranks of a measurement take together, outside the timed part."""

    barrier: Callable[[], object]
    of_rank_0: Callable[[int], int]
    largest: Callable[[float], float]


def measured(calls: Mapping[str, Call], together: Together, block_seconds: float) -> dict[str, float]:
    """Mean seconds of a call by each transport, at the slowest rank.

    The transports take turns: ``BLOCKS`` blocks each of about ``block_seconds``. All calls count, those that wait for a
    retransmission too.
    """
    counts: dict[str, int] = {}
    for name, call in calls.items():
        call()
        began = time.perf_counter()
        for _ in range(FIRST_CALLS):
            call()
        seconds = max(time.perf_counter() - began, 1e-9)
        counts[name] = together.of_rank_0(max(1, int(block_seconds * FIRST_CALLS / seconds)))
    total = dict.fromkeys(calls, 0.0)
    for _ in range(BLOCKS):
        for name, call in calls.items():
            together.barrier()
            began = time.perf_counter()
            for _ in range(counts[name]):
                call()
            total[name] += together.largest(time.perf_counter() - began)
    return {name: total[name] / (BLOCKS * counts[name]) for name in calls}


def all_cells(
    calls_of: Callable[[str, int], Mapping[str, Call]],
    together: Together,
    sizes: Sequence[int],
    seconds: float,
) -> dict[str, dict[str, dict[str, float]]]:
    """Verb, size, transport: seconds of a call."""
    return {
        verb: {
            str(size): measured(calls_of(verb, size), together, seconds)
            for size in (sizes if verb != "barrier" else sizes[:1])
        }
        for verb in VERBS
    }


def both(options: argparse.Namespace) -> None:
    import torch
    import torch.distributed as dist

    import mlt

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{options.file}", rank=options.rank, world_size=options.ranks)

    def of_rank_0(count: int) -> int:
        shared = torch.tensor([count])
        dist.broadcast(shared, 0)
        return int(shared)

    def largest(seconds: float) -> float:
        shared = torch.tensor([seconds], dtype=torch.float64)
        dist.all_reduce(shared, dist.ReduceOp.MAX)
        return float(shared)

    with mlt.Context(
        options.rank, options.ranks, master_addr=options.master, rendezvous_port=options.port,
        secret="a secret of this measurement only",
    ) as context:  # fmt: skip
        found = all_cells(
            lambda verb, size: {"mlt": of_mlt(verb, size, context), "gloo": of_gloo(verb, size, dist)},
            Together(dist.barrier, of_rank_0, largest),
            options.sizes,
            options.seconds,
        )
    dist.destroy_process_group()
    if options.rank == 0:
        print(json.dumps(found), flush=True)


def mpi(options: argparse.Namespace) -> None:
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    found = all_cells(
        lambda verb, size: {options.name: of_mpi(verb, size, MPI)},
        Together(
            world.Barrier, lambda count: world.bcast(count), lambda seconds: world.allreduce(seconds, op=MPI.MAX)
        ),
        options.sizes,
        options.seconds,
    )  # fmt: skip
    if world.Get_rank() == 0:
        print(json.dumps(found), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("transports", choices=["both", "mpi"])
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--ranks", type=int, default=0)
    parser.add_argument("--master", default="")
    parser.add_argument("--name", default="Open MPI", help="name of the MPI that mpirun chose (default: %(default)s)")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--file", default="")
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--sizes", type=int, nargs="+", required=True)
    options = parser.parse_args()
    {"both": both, "mpi": mpi}[options.transports](options)


if __name__ == "__main__":
    main()
