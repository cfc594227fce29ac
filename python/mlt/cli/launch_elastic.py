"""The elastic jobs of ``mlt launch``: no process has a rank of its own, the membership coordinator gives one for each
epoch."""

from __future__ import annotations

import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from mlt._shared import processes as supervisor
from mlt._shared.counts import count_of
from mlt._shared.units import format_time
from mlt.job import secret as secret_module
from mlt.job.configuration import DEFAULT_JOB
from mlt.job.epochs.settings import VARIABLE, Bounds, Place

HOST = "127.0.0.1"
# Of the launcher itself or of another job: a process must not take them for its own.
NOT_INHERITED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MLT_SERVICES", "MLT_LAUNCH_FAILURES")


class Additions:
    """Workers to start in addition, one for each SIGUSR1 that arrives: the kernel may deliver several as one."""

    def __init__(self, first: int, *, say: Callable[[str], object]) -> None:
        self._next = first
        self._asked: deque[None] = deque()  # a handler may interrupt another one, or take(): a count would lose some
        self._say = say

    def take(self) -> Sequence[str]:
        """Names of those that were asked for since the last call."""
        names = []
        while self._asked:
            self._asked.popleft()
            names.append(f"worker {self._next}")
            self._next += 1
            self._say(f"starts {names[-1]}")
        return names

    @contextmanager
    def by_signal(self) -> Iterator[None]:
        """SIGUSR1 asks for one within this."""

        def add(*_: object) -> None:
            self._asked.append(None)

        before = signal.signal(signal.SIGUSR1, add)
        try:
            yield
        finally:
            signal.signal(signal.SIGUSR1, before)


class Job:
    """The coordinator of a job of this host, in a thread, and what its processes inherit. Raises as ``Coordinator``."""

    def __init__(self, bounds: Bounds, secret: dict[str, str]) -> None:
        from mlt.job.epochs.coordinator import Coordinator  # here, so that the help loads less

        environ = {**os.environ, **secret}
        self._coordinator = Coordinator(
            Place(HOST, 0),
            bounds,
            job=environ.get("MLT_JOB", DEFAULT_JOB),
            secret=secret_module.resolve(None, environ),
        )
        self.bounds = bounds
        self._left = [bounds.first_workers or 0, bounds.first_services or 0]
        self._thread = threading.Thread(target=self._coordinator.run, name="mlt-coordinator", daemon=True)
        self.environment = {**secret, VARIABLE: str(self._coordinator.place)}

    def __enter__(self) -> Job:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._coordinator.stop()
        self._thread.join()
        self._coordinator.close()

    def on_end(self, ending: supervisor.Ending) -> None:
        """A process has failed: the first epoch does not wait for it."""
        self._left[_is_service(ending)] -= 1
        self._coordinator.expect(*self._left)

    @property
    def has_too_few_services(self) -> bool:
        """Whether no epoch begins until another service joins."""
        return self._left[1] < self.bounds.min_services


def consequence(ending: supervisor.Ending, job: Job | None) -> str:
    """The end of the line about the failure of one process. ``job``: unless its coordinator is elsewhere."""
    if job is not None and _is_service(ending) and job.has_too_few_services:
        wait = format_time(job.bounds.wait_seconds)
        return f"; too few services are left: the workers wait {wait} (--wait) for another to join, then they fail"
    return "; the others continue without it"


def _is_service(ending: supervisor.Ending) -> bool:
    return ending.name.startswith("service")


def bounds_of(workers: int, services: int, min_workers: int | None, max_workers: int | None, wait: float) -> Bounds:
    """Bounds of a job of this host. Raises ConfigError."""
    at_least = workers if min_workers is None else min_workers
    maximum = {} if max_workers is None else {"max_workers": max_workers}
    return Bounds(
        min_workers=at_least,
        min_services=min(services, 1),
        first_workers=workers,
        first_services=services,
        wait_seconds=wait,
        settle_seconds=0.0,
        ends_when_empty=True,
        **maximum,
    )


def started_text(workers: int, minimum: int) -> str:
    """The line for the user at the start of the job."""
    return f"{count_of(workers, 'worker')}, of which {minimum} must be left; `kill -USR1 {os.getpid()}` starts another"
