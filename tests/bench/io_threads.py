"""What I/O threads move off the protocol's thread: 64 MiB one way over loopback, four paths, 0, 1 and 2 threads.

    python tests/bench/io_threads.py [turns]

A job of two processes for each number of threads, in turns that begin with another one each time. Prints medians over
the turns with the least and the most: goodput, CPU of both ranks per GB, and of it that of the two threads that run the
protocol, which bounds what ranks can move whose I/O threads have CPUs of their own.
"""

from __future__ import annotations

import multiprocessing
import socket
import statistics
import sys
import time
from multiprocessing.queues import Queue
from pathlib import Path

import numpy as np

import mlt

THREADS = (0, 1, 2)
PATHS = 4
BYTES = 64 << 20
ROUNDS = 12
GIGA = 1e9


def cpu_seconds() -> dict[str, float]:
    """CPU of this process's threads by what they are: the interpreter's, the protocol's, I/O."""
    spent = {"python": 0.0, "protocol": 0.0, "io": 0.0}
    for task in Path("/proc/self/task").iterdir():
        name = (task / "comm").read_text()
        if name.startswith("mlt-io-"):
            kind = "io"
        else:
            kind = "python" if task.name == str(multiprocessing.current_process().pid) else "protocol"
        spent[kind] += int((task / "schedstat").read_text().split()[0]) / GIGA
    return spent


def rank_of_job(rank: int, port: int, threads: int, answers: Queue[tuple[float, dict[str, float]]]) -> None:
    """Rank 1 sends, rank 0 receives and says how long it took."""
    tensor = np.zeros(BYTES // 4, dtype=np.float32)
    with mlt.Context(
        rank, 2, master_addr="127.0.0.1", rendezvous_port=port, host="127.0.0.1", paths=PATHS, io_threads=threads
    ) as context:
        start, before = 0.0, {}
        for turn in range(ROUNDS + 2):
            if turn == 2:  # the first two find the rate
                start, before = time.perf_counter(), cpu_seconds()
            if rank == 0:
                context.wait(context.post_recv(tensor, from_=1, tag=turn))
            else:
                context.wait(context.post_send(tensor, to=0, tag=turn))
        seconds = time.perf_counter() - start
        after = cpu_seconds()
        answers.put((seconds, {kind: after[kind] - before[kind] for kind in after}))


def run(threads: int) -> tuple[float, float, float]:
    """Gbit/s, CPU seconds per GB, and those of the protocol's threads."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    answers: Queue[tuple[float, dict[str, float]]] = multiprocessing.Queue()
    ranks = [multiprocessing.Process(target=rank_of_job, args=(rank, port, threads, answers)) for rank in range(2)]
    for process in ranks:
        process.start()
    told = [answers.get(timeout=120) for _ in ranks]
    for process in ranks:
        process.join()
    moved = ROUNDS * BYTES / GIGA
    seconds = max(one for one, _ in told)
    cpu = sum(sum(spent.values()) for _, spent in told)
    return 8 * moved / seconds, cpu / moved, sum(spent["protocol"] for _, spent in told) / moved


def main() -> None:
    turns = int(sys.argv[1]) if len(sys.argv) > 1 else 7
    found: dict[int, list[tuple[float, float, float]]] = {threads: [] for threads in THREADS}
    for turn in range(turns):
        for i in range(len(THREADS)):
            threads = THREADS[(turn + i) % len(THREADS)]
            found[threads].append(run(threads))
    print("threads  Gbit/s (least, most)     CPU s/GB (least, most)     of it the protocol's threads")
    for threads, results in found.items():
        cells = []
        for column in zip(*results, strict=True):
            cells.append(f"{statistics.median(column):.3g} ({min(column):.3g}, {max(column):.3g})")
        print(f"{threads:<8} {cells[0]:<24} {cells[1]:<26} {cells[2]}")
    for threads in THREADS[1:]:
        ratios = [one[0] / base[0] for one, base in zip(found[threads], found[0], strict=True)]
        print(f"goodput of {threads} to 0 threads, turn by turn: median {statistics.median(ratios):.2f}")


if __name__ == "__main__":
    main()
