"""Time of push-pull beside equation 6 of BytePS and gloo, on a testbed: 2 to 4 workers, spare hosts for services.

    python tools/push_pull_speed.py                            # needs root and torch; about 5 minutes
    python tools/push_pull_speed.py --workers 2 --rounds 3     # a first look

Each of n workers has a host of its own and a summation service beside it; k further hosts have a service each. The rows
are gloo's all-reduce, that of mlt, and push-pull by equal loads and by those of equations 1 and 2 (where k is below n;
with k = n, those by itself). A time is the median of the rounds, each as long as its slowest worker. Equation 6 is for
the rate of a link less the headers of Ethernet, IP, UDP and mlt.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Final

import numpy as np
from rank_outputs import PIPES, outputs_of

import mlt
from mlt._shared.units import RATE, SIZE
from mlt.options.service_loads import by_hosts
from mlt.testbed import Testbed

LIMIT_SECONDS: Final = 120
WARM_UP: Final = 2
# Of a full packet: mlt's payload, and the frame that the testbed's links count, without preamble, FCS and gap.
PAYLOAD, WIRE = 1_432, 1_514


def least_seconds(workers: int, spare: int, tensor_bytes: float, bytes_per_second: float) -> float:
    """Return equation 6: the least time of a push-pull that the busiest link permits.

    >>> least_seconds(4, 0, 8, 1.0), least_seconds(4, 4, 6, 2.0)
    (12.0, 3.0)
    """
    n, k = workers, spare
    return 2 * n * (n - 1) / (n * n + k * n - 2 * k) * tensor_bytes / bytes_per_second


def rounds_of(average: Callable[[], object], rounds: int) -> list[float]:
    """Return the seconds of each round; all workers begin one when the slowest has ended that before."""
    seconds = []
    for _ in range(WARM_UP + rounds):
        start = time.perf_counter()
        average()
        seconds.append(time.perf_counter() - start)
    return seconds[WARM_UP:]


def run_rank(kind: str, elements: int, rounds: int) -> None:
    """Be a rank of one measurement: print the seconds of each round as JSON, nothing as a service."""
    if kind == "gloo":
        import torch
        import torch.distributed as dist

        dist.init_process_group("gloo")
        tensor = torch.ones(elements)
        print(json.dumps(rounds_of(lambda: dist.all_reduce(tensor), rounds)))
        dist.destroy_process_group()
        return
    with mlt.Context(connect_timeout=30) as context:
        if context.rank >= context.world_size:
            mlt.SummationService(context).run()
            print("[]")
            return
        values = np.ones(elements, np.float32)
        if kind == "ring":
            print(json.dumps(rounds_of(lambda: context.all_reduce(values), rounds)))
            return
        services = context.size - context.world_size
        loads = by_hosts(context.hosts, context.world_size) if kind == "by loads" else [1] * services
        push_pull = mlt.PushPull(context, loads=loads)
        print(json.dumps(rounds_of(lambda: push_pull.push_pull(values, key=0).wait(60), rounds)))


def seconds_of(bed: Testbed, kind: str, workers: int, spare: int, elements: int, rounds: int) -> float:
    """Return the median time of a round of one kind, as long as its slowest worker."""
    places = list(range(workers))
    if kind in ("equal loads", "by loads"):
        places += [*range(workers), *range(workers, workers + spare)]
    env = {"WORLD_SIZE": str(workers), "MLT_SERVICES": str(len(places) - workers), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, __file__, "--rank", kind, str(elements), str(rounds)]
    processes = [
        bed.popen(f"host{host}", command, env={**env, "RANK": str(rank)}, **PIPES) for rank, host in enumerate(places)
    ]
    what = f"{kind}, {workers} workers, {spare} spare hosts"
    printed = outputs_of(what, processes, LIMIT_SECONDS)[:workers]
    rounds_of_ranks = zip(*(json.loads(text.splitlines()[-1]) for text in printed), strict=True)
    return statistics.median(max(times) for times in rounds_of_ranks)


def measure(bed: Testbed, workers: int, options: argparse.Namespace) -> list[str]:
    """Print and return the rows of the table for so many workers."""
    elements = int(SIZE.read(options.size)) // 4
    payload_rate = RATE.read(options.rate) / 8 * PAYLOAD / WIRE
    beside = {kind: seconds_of(bed, kind, workers, 0, elements, options.rounds) for kind in ("gloo", "ring")}
    rows = []
    for spare in range(workers + 1) if options.spare is None else [options.spare]:
        least = least_seconds(workers, spare, 4 * elements, payload_rate)
        cells = [f"{workers}", f"{spare}", f"{least * 1e3:.1f}", *(f"{beside[kind] * 1e3:.1f}" for kind in beside)]
        for kind in ("equal loads", "by loads"):
            if kind == "by loads" and spare == 0:
                cells.append("as equal")
                continue
            seconds = seconds_of(bed, kind, workers, spare, elements, options.rounds)
            cells.append(f"{seconds * 1e3:.1f} ({seconds / least:.2f})")
        rows.append(f"| {' | '.join(cells)} |")
        print(rows[-1], flush=True)
    return rows


def main() -> None:
    """Print a table of all measurements."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", default="2,3,4", help="numbers of workers (default: %(default)s)")
    parser.add_argument("--spare", type=int, help="one number of spare hosts (default: 0 to as many as workers)")
    parser.add_argument("--rate", default="200mbit", help="rate of every link (default: %(default)s)")
    parser.add_argument("--size", default="4MiB", help="size of the tensor (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=10, help="timed rounds of each kind (default: %(default)s)")
    options = parser.parse_args()
    start = time.monotonic()
    now = datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M")
    print(
        f"{now}, {options.size} float32, {options.rate}, {os.cpu_count()} cores; ms, and times equation 6", flush=True
    )
    print("| n | k | equation 6 | gloo | mlt ring | push-pull, equal loads | equations 1 and 2 |")
    print("|---|---|---|---|---|---|---|", flush=True)
    for workers in [int(number) for number in options.workers.split(",")]:
        with Testbed(hosts=2 * workers, rate=options.rate) as bed:
            measure(bed, workers, options)
    print(f"{time.monotonic() - start:.0f} s")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        run_rank(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    else:
        main()
