"""Cost of ``Context.stats()``: python tests/bench/recording.py [MESSAGES]. Two ranks in one process, over loopback.

Prints microseconds per message of 8 bytes (median of 15 exchanges) before the first ``stats()`` and after it, of a
recorded completion in a batch and alone, and of a ``stats()``.
"""

from __future__ import annotations

import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import mlt
from mlt._shared.ports import free_port
from mlt.stats import Recorder


def exchange(contexts: list[mlt.Context], messages: int) -> tuple[float, list[mlt.Completion]]:
    buffers = [bytearray(8) for _ in range(messages)]
    start = time.perf_counter()
    receives = contexts[1].post_recvs([(buffer, 0, tag) for tag, buffer in enumerate(buffers)])
    sends = contexts[0].post_sends([(b"x" * 8, 1, tag) for tag in range(messages)])
    done = contexts[1].wait_all(receives)
    contexts[0].wait_all(sends)
    return (time.perf_counter() - start) / messages * 1e6, done


def main() -> None:
    messages, port = int(sys.argv[1]) if len(sys.argv) > 1 else 2_000, free_port()
    with ThreadPoolExecutor(2) as threads:
        contexts = list(
            threads.map(lambda rank: mlt.Context(rank, 2, master_addr="127.0.0.1", rendezvous_port=port), range(2))
        )
    print(f"per message, not recorded: {statistics.median(exchange(contexts, messages)[0] for _ in range(15)):.2f} us")
    for context in contexts:
        context.stats()
    print(f"per message, recorded:     {statistics.median(exchange(contexts, messages)[0] for _ in range(15)):.2f} us")
    natives = [one._native for one in exchange(contexts, messages)[1]]
    recorder = Recorder()
    start = time.perf_counter()
    recorder.add(natives)
    middle = time.perf_counter()
    for native in natives:
        recorder.add((native,))
    print(f"a completion in a batch: {(middle - start) / messages * 1e6:.2f} us")
    print(f"a completion alone:      {(time.perf_counter() - middle) / messages * 1e6:.2f} us")
    start = time.perf_counter()
    for _ in range(200):
        contexts[0].stats()
    print(f"stats():                 {(time.perf_counter() - start) / 200 * 1e6:.1f} us")
    for context in contexts:
        context.close()


if __name__ == "__main__":
    main()
