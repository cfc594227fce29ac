"""The cost of one small operation: time and CPU time of a ping-pong and of an all-reduce between two ranks of this
host, and of an all-reduce of one rank alone, which only costs what is around the transfers.

    python tests/bench/one_operation.py [--bytes 64] [--rounds 3000] [--site FOLDER]

MLT_DATAPATH=udp does without shared memory, MLT_SPIN_US=0 without polling. ``--site`` is a folder with another build of
the package: run the two by turns and compare. Not a test: no figure here is a promise.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from collections.abc import Callable

import two_ranks

WARM_UP = 300


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bytes", type=int, default=64, help="tensor size, a multiple of 4 (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3000, help="timed operations (default: %(default)s)")
    parser.add_argument("--site", help="folder with the package to measure")
    options = parser.parse_args()
    rank = two_ranks.own_rank()
    if rank is None:
        two_ranks.launch(__file__, sys.argv[1:])
    else:
        run_rank(options, rank)


def run_rank(options: argparse.Namespace, rank: int) -> None:
    if options.site:
        sys.path.insert(0, options.site)
    import numpy as np

    import mlt

    peer = 1 - rank
    tensor = np.ones(max(options.bytes // 4, 1), np.float32)
    landing = np.zeros_like(tensor)
    with mlt.Context(job="one-operation") as context:

        def ping_pong(tag: int) -> None:
            if rank == 0:
                send = context.post_send(tensor, to=peer, tag=2 * tag)
                context.post_recv(landing, from_=peer, tag=2 * tag + 1).wait()
                send.wait()
            else:
                context.post_recv(landing, from_=peer, tag=2 * tag).wait()
                context.post_send(tensor, to=peer, tag=2 * tag + 1).wait()

        figures = {
            "ping_pong": measure(ping_pong, options.rounds),
            "all_reduce": measure(lambda _: context.all_reduce(tensor), options.rounds),
            "alone": measure(lambda _: context.all_reduce(tensor, ranks=[rank]), options.rounds),
        }
    if rank == 0:
        print(json.dumps(figures))


def measure(operation: Callable[[int], object], rounds: int) -> dict[str, float]:
    """Microseconds of each round."""
    for number in range(WARM_UP):
        operation(number)
    before = resource.getrusage(resource.RUSAGE_SELF)
    times = []
    for number in range(WARM_UP, WARM_UP + rounds):
        start = time.perf_counter_ns()
        operation(number)
        times.append(time.perf_counter_ns() - start)
    after = resource.getrusage(resource.RUSAGE_SELF)
    times.sort()
    return {
        "p10": round(times[rounds // 10] / 1e3, 1),
        "p50": round(times[rounds // 2] / 1e3, 1),
        "p99": round(times[rounds * 99 // 100] / 1e3, 1),
        "user": round((after.ru_utime - before.ru_utime) * 1e6 / rounds, 1),
        "system": round((after.ru_stime - before.ru_stime) * 1e6 / rounds, 1),
    }


if __name__ == "__main__":
    main()
