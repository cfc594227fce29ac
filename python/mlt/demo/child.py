"""Start of every process of a run: connects to the parent for reports, and ends with the parent."""

from __future__ import annotations

import socket

from mlt._shared.link import Link
from mlt._shared.processes import end_with_parent
from mlt.demo.events import Event
from mlt.demo.settings import ProcessJob


class Reporter:
    """Sends events to the parent."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def report(self, event: Event) -> None:
        self._link.send(event.model_dump())


def start(argument: str) -> tuple[ProcessJob, Reporter]:
    """Read the job from the command line and watch the parent; returns the job and the reporter."""
    job = ProcessJob.model_validate_json(argument)
    link = Link(socket.socket(fileno=job.events_fd))
    end_with_parent(link)
    return job, Reporter(link)
