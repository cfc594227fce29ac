"""A membership coordinator in a thread, for the tests of elastic jobs."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from mlt.job.epochs.coordinator import Coordinator
from mlt.job.epochs.settings import Bounds, Place

LOOPBACK = Place("127.0.0.1", 0)
_END_SECONDS = 10.0


@contextlib.contextmanager
def coordinator(
    place: Place = LOOPBACK, *, job: str = "default", secret: Any = None, **bounds: Any
) -> Iterator[Coordinator]:
    """One that runs within this; it begins the first epoch at once, unless ``settle_seconds`` are given."""
    own = Bounds(**{"wait_seconds": 10.0, "settle_seconds": 0.0, **bounds})
    with Coordinator(place, own, job=job, secret=secret) as running:
        thread = threading.Thread(target=running.run, daemon=True)
        thread.start()
        try:
            yield running
        finally:
            running.stop()
            thread.join(_END_SECONDS)
