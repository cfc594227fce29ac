"""Time of a change of members on this host: 2 workers to 3, and 4 to 3 by SIGKILL (docs/elastic.md).

    python tools/elastic_times.py --turns 10

The pause of a worker that stays runs from the end of its last step in one epoch to the end of the first in the next, so
it has the rendezvous, the connections, and the broadcast of the state (40 kB). After SIGKILL it runs from the kill.
"""

from __future__ import annotations

import argparse
import multiprocessing as mp
import statistics
import threading
import time
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

import mlt
from mlt.elastic import Membership
from mlt.job.epochs.coordinator import Coordinator
from mlt.job.epochs.settings import Bounds, Place

SIZE = 10_000
STEP_SECONDS = 0.005
LIMIT_SECONDS = 60.0


def worker(place: str, pipe: Connection) -> None:
    """Steps until the end of the process; sends (workers, end of the last step, end of the first one) of each epoch."""
    weights, last = np.zeros(SIZE, np.float32), 0.0
    with Membership(place) as membership:
        while True:
            context = membership.next_epoch()
            assert context is not None
            is_first = True
            try:
                context.broadcast(weights, root=0)
                while is_first or not membership.agrees_on_change(context):
                    context.all_reduce(np.ones(SIZE, np.float32))
                    now = time.monotonic()
                    if is_first:
                        pipe.send((context.world_size, last, now))
                    is_first, last = False, now
                    time.sleep(STEP_SECONDS)
            except (mlt.PeerFailedError, mlt.CancelledError):
                pass


class Workers:
    """Processes of one job."""

    def __init__(self, place: str, count: int) -> None:
        self._place = place
        self.started: list[tuple[Any, Connection]] = []
        for _ in range(count):
            self.add()

    def add(self) -> None:
        ours, theirs = mp.Pipe()
        process = mp.Process(target=worker, args=(self._place, theirs), daemon=True)
        process.start()
        self.started.append((process, ours))

    def pauses(self, size: int, since: float | None = None) -> float:
        """The longest pause before an epoch of this size, of those that were in one before; ``since``: from then on."""
        longest = 0.0
        for _, pipe in self.started:
            while True:
                assert pipe.poll(LIMIT_SECONDS), "no epoch within a minute"
                workers, last, now = pipe.recv()
                if workers == size:
                    break
            if last:
                longest = max(longest, now - (last if since is None else since))
        return longest

    def end(self) -> None:
        for process, _ in self.started:
            process.kill()
            process.join()


def turn(first: int) -> float:
    """One job that starts with so many workers and continues with 3; the pause in seconds."""
    with Coordinator(Place("127.0.0.1", 0), Bounds(first_workers=first, settle_seconds=0.0)) as coordinator:
        thread = threading.Thread(target=coordinator.run, daemon=True)
        thread.start()
        workers = Workers(str(coordinator.place), first)
        try:
            workers.pauses(first)
            time.sleep(0.5)
            if first < 3:
                workers.add()
                return workers.pauses(3)
            killed, _ = workers.started.pop()
            since = time.monotonic()
            killed.kill()
            return workers.pauses(3, since)
        finally:
            workers.end()
            coordinator.stop()
            thread.join()


def main() -> None:
    """Measure, and print a line for each change."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=10)
    turns = parser.parse_args().turns
    mp.set_start_method("spawn")
    for first, text in ((2, "2 workers to 3"), (4, "4 workers to 3 by SIGKILL")):
        found = sorted(1_000 * turn(first) for _ in range(turns))
        print(f"{text}: median {statistics.median(found):.0f} ms, {found[0]:.0f} to {found[-1]:.0f} ms of {turns}")


if __name__ == "__main__":
    main()
