"""A membership coordinator in a thread, for the tests of elastic jobs."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from mlt.job.epochs.coordinator import Coordinator
from mlt.job.epochs.settings import Bounds, Place

LOOPBACK = Place("127.0.0.1", 0)
_END_SECONDS = 10.0


class Running(Coordinator):
    """A coordinator with its thread."""

    def __init__(self, place: Place, bounds: Bounds, **options: Any) -> None:
        super().__init__(place, bounds, **options)
        self._thread = threading.Thread(target=self.run, daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Stop and close it; the thread is in no system call of a closed socket, because it has ended before."""
        self.stop()
        self._thread.join(_END_SECONDS)
        assert not self._thread.is_alive()
        self.close()

    def wait_for(self, seconds: float) -> None:
        """Set ``wait_seconds`` once an epoch is running: the wait for the first one includes the start of processes."""
        self._roster.bounds = replace(self._roster.bounds, wait_seconds=seconds)


@contextlib.contextmanager
def coordinator(
    place: Place = LOOPBACK, *, job: str = "default", secret: Any = None, **bounds: Any
) -> Iterator[Running]:
    """One that runs within this; it begins the first epoch at once, unless ``settle_seconds`` are given."""
    own = Bounds(**{"wait_seconds": 10.0, "settle_seconds": 0.0, **bounds})
    running = Running(place, own, job=job, secret=secret)
    try:
        yield running
    finally:
        running.end()
