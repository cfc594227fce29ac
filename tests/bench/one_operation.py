"""What one small operation costs: time and CPU time of a ping-pong and of an all-reduce between two ranks of this
machine, and of an all-reduce of one rank alone, which only costs what is around the transfers.

    python -P tests/bench/one_operation.py [--bytes 64] [--rounds 3000] [--site FOLDER]

MLT_DATAPATH=udp does without shared memory, MLT_SPIN_US=0 without polling. ``--site`` is a folder with another build of
the package: run the two by turns and compare. Not a test: no figure here is a promise.
"""

from __future__ import annotations

import argparse
import json
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Callable

WARM_UP = 300


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bytes", type=int, default=64, help="tensor size, a multiple of 4 (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3000, help="timed operations (default: %(default)s)")
    parser.add_argument("--site", help="folder with the package to measure")
    parser.add_argument("--rank", type=int, default=-1, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank >= 0:
        run_rank(options)
        return
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-P", __file__, *sys.argv[1:], "--port", str(port), "--rank"]
    with subprocess.Popen([*command, "1"]) as other:
        subprocess.run([*command, "0"], check=True)
    if other.returncode:
        sys.exit(f"rank 1 ended with {other.returncode}")


def run_rank(options: argparse.Namespace) -> None:
    if options.site:
        sys.path.insert(0, options.site)
    import numpy as np

    import mlt

    rank, peer = options.rank, 1 - options.rank
    tensor = np.ones(max(options.bytes // 4, 1), np.float32)
    landing = np.zeros_like(tensor)
    with mlt.Context(rank, 2, job="one-operation", master_addr="127.0.0.1", rendezvous_port=options.port) as context:

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
