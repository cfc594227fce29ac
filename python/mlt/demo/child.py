"""What every process of a run does first: report to the parent, and end when the parent does."""

from __future__ import annotations

import os
import threading

from mlt.demo.events import Event, encode
from mlt.demo.settings import ProcessJob

ORPHANED = 75


class Reporter:
    """Writes events to the parent's pipe. Used by one thread."""

    def __init__(self, fd: int) -> None:
        self._file = os.fdopen(fd, "wb", buffering=0)

    def report(self, event: Event) -> None:
        self._file.write(encode(event))


def start(argument: str) -> tuple[ProcessJob, Reporter]:
    """Read the job from the command line and watch the parent; returns the job and the way to report."""
    job = ProcessJob.model_validate_json(argument)
    threading.Thread(target=_end_with_parent, name="mlt-demo-parent-watch", daemon=True).start()
    return job, Reporter(job.events_fd)


def _end_with_parent() -> None:
    # Standard input is a pipe that only the parent holds open and never writes to: it reads as ended when the parent
    # is gone, however it went. (os.read, as a blocked sys.stdin would hold a lock the interpreter wants at exit.)
    while os.read(0, 1):
        pass
    os._exit(ORPHANED)
