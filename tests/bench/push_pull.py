"""Push-pull between one worker and one summation service beside plain sends between the same two, by turns.

    python tests/bench/push_pull.py [--bytes 4MB] [--keys 8] [--rounds 20] [--turns 5]

A round moves ``keys`` tensors, all under way at once: one way as sends from the worker to the service, or as
push-pulls, which bring as much back. Printed as JSON: seconds of each round, and key bytes per second in one direction
(median). The datapath is what MLT_DATAPATH says; MLT_SPIN_US=0 does without polling. Not a test: no figure here is a
promise.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable

import numpy as np
import two_ranks

import mlt
from mlt._shared.units import SIZE

WORKER, SERVICE = 0, 1
_WARM_UP = 3
_LAST = 1_000_000  # a round that no turn reaches


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bytes", default="4MB", help="size of each tensor (default: %(default)s)")
    parser.add_argument("--keys", type=int, default=8, help="number of tensors (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=20, help="rounds of each kind, all turns (default: %(default)s)")
    parser.add_argument("--turns", type=int, default=5, help="number of turns (default: %(default)s)")
    options = parser.parse_args()
    rank = two_ranks.own_rank()
    if rank is None:
        two_ranks.launch(__file__, sys.argv[1:], world_size=1)
    else:
        run_rank(options, rank)


def run_rank(options: argparse.Namespace, rank: int) -> None:
    elements = round(SIZE.named("--bytes", options.bytes)) // 4
    tensors = [np.ones(elements, np.float32) for _ in range(options.keys)]
    with mlt.Context(job="push-pull") as context:
        push_pull = mlt.PushPull(context) if rank == WORKER else None
        service = mlt.SummationService(context) if rank == SERVICE else None

        def one_way(number: int) -> None:
            tags = range(number * options.keys, (number + 1) * options.keys)
            if rank == WORKER:
                posted = [context.post_send(t, to=SERVICE, tag=tag) for t, tag in zip(tensors, tags, strict=True)]
            else:
                posted = [context.post_recv(t, from_=WORKER, tag=tag) for t, tag in zip(tensors, tags, strict=True)]
            for operation in posted:
                operation.wait()

        def push_pulls(_: int) -> None:
            if push_pull is not None:  # the service serves by itself
                for handle in [push_pull.push_pull(tensor, key=key) for key, tensor in enumerate(tensors)]:
                    handle.wait()

        found = measure({"one_way": one_way, "push_pull": push_pulls}, options.rounds, options.turns)
        one_way(_LAST)  # the service stays until the worker needs it no more
        del service
        if rank == WORKER:
            rates = {kind: options.keys * elements * 4 / statistics.median(seconds) for kind, seconds in found.items()}
            print(json.dumps({"seconds": found, "bytes_per_second": rates}))


def measure(kinds: dict[str, Callable[[int], None]], rounds: int, turns: int) -> dict[str, list[float]]:
    """Seconds of each round of each kind; a turn has rounds of all kinds."""
    found: dict[str, list[float]] = {kind: [] for kind in kinds}
    number = 0
    for _ in range(turns):
        for kind, operation in kinds.items():
            for index in range(_WARM_UP + rounds // turns):
                began = time.perf_counter()
                operation(number)
                number += 1
                if index >= _WARM_UP:
                    found[kind].append(time.perf_counter() - began)
    return found


if __name__ == "__main__":
    main()
