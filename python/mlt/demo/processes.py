"""The processes of one run: started, supervised and always ended together.

The first process that fails is reported as the cause: the others usually fail a moment later because it is gone.
"""

from __future__ import annotations

import contextlib
import functools
import os
import selectors
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from pydantic import ValidationError

from mlt._shared.link import Link, LinkClosedError, LinkError
from mlt._shared.processes import TERMINATE_SECONDS, Group, Process
from mlt.demo.events import Event, Finished, event_of
from mlt.demo.problem import DemoError

LOG_TAIL_LINES: Final = 20
AFTERMATH_LINES: Final = 3
_AFTERMATH_SECONDS: Final = 1.0
EXIT_SECONDS: Final = 30.0
_POLL_SECONDS: Final = 0.1


@dataclass(frozen=True)
class ProcessSpec:
    """``name`` is for display; ``module`` runs with the JSON that ``job`` returns for the event socket's descriptor."""

    name: str
    rank: int
    module: str
    job: Callable[[int], str]


@dataclass
class _Child:
    spec: ProcessSpec
    process: Process
    link: Link
    log: Path
    finished: bool = False
    last_message: float = field(default_factory=time.monotonic)


def popen_here(rank: int, command: Sequence[str], *, env: Mapping[str, str], **options: Any) -> Any:
    """``subprocess.Popen`` on this host."""
    return subprocess.Popen(command, env={**os.environ, **env, "RANK": str(rank)}, **options)


class ProcessGroup:
    """Context manager around the processes of a run; on exit, all of them have ended.

    ``stall_seconds``: limit of the time without any event, after which the run fails. ``popen``: starts a process where
    its rank belongs, with ``environment`` besides what belongs there.
    """

    def __init__(
        self,
        specs: Sequence[ProcessSpec],
        *,
        environment: dict[str, str],
        logs: Path,
        stall_seconds: float,
        popen: Callable[..., Any] = popen_here,
    ) -> None:
        self._specs = specs
        self._environment = environment
        self._logs = logs
        self._stall_seconds = stall_seconds
        self._popen = popen
        self._group = Group()
        self._children: list[_Child] = []
        self._selector = selectors.DefaultSelector()

    def __enter__(self) -> ProcessGroup:
        self._logs.mkdir(parents=True, exist_ok=True)
        try:
            for spec in self._specs:
                self._start(spec)
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    @property
    def pids(self) -> dict[str, int]:
        """Process id by name."""
        return {child.spec.name: child.process.pid for child in self._children}

    def _start(self, spec: ProcessSpec) -> None:
        log = self._logs / f"{spec.name}.log"
        here, there = socket.socketpair()
        link = Link(here, spec.name)
        try:
            with there:
                start = functools.partial(
                    self._popen, spec.rank, [sys.executable, "-m", spec.module, spec.job(there.fileno())],
                    pass_fds=(there.fileno(),), env=self._environment,
                )  # fmt: skip
                process = self._group.start(spec.name, start, log.open("w+b"))
        except BaseException:
            link.close()
            raise
        child = _Child(spec, process, link, log)
        self._children.append(child)
        self._selector.register(link, selectors.EVENT_READ, child)

    def events(self) -> Iterator[Event]:
        """Yield the processes' events until all have finished and exited.

        Raises DemoError with the process and the tail of its log if one fails or all are silent.
        """
        while self._selector.get_map():
            gone: list[_Child] = []
            for key, _ in self._selector.select(_POLL_SECONDS):
                yield from self._read(key.data, gone)
            if gone:
                raise self._end_of(gone)
            self._check_silence()
        deadline = time.monotonic() + EXIT_SECONDS
        for child in self._children:
            self._expect_exit(child, max(0.0, deadline - time.monotonic()))

    def _read(self, child: _Child, gone: list[_Child]) -> Iterator[Event]:
        try:
            message = child.link.receive_ready()
            while message is not None:
                child.last_message = time.monotonic()
                event = event_of(message)
                child.finished = child.finished or isinstance(event, Finished)
                yield event
                message = child.link.take()
        except LinkClosedError:
            self._selector.unregister(child.link)
            if not child.finished:
                gone.append(child)
        except (ValidationError, LinkError) as error:
            raise self._failure(child, f"reported something unreadable ({type(error).__name__})") from error

    def _expect_exit(self, child: _Child, seconds: float) -> None:
        try:
            code = child.process.popen.wait(seconds)
        except subprocess.TimeoutExpired:
            raise self._failure(child, "reported its end but is still running") from None
        if code != 0:
            raise self._failure(child, str(child.process.ending()))

    def _end_of(self, gone: list[_Child]) -> DemoError:
        """The error for processes that closed their pipe too early, all detected at the same time."""
        for child in gone:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.process.popen.wait(TERMINATE_SECONDS)
        # A process that a signal ended is the likely cause; the others may have failed because of it.
        culprit = min(gone, key=lambda child: (child.process.popen.returncode or 0) >= 0)
        if not culprit.process.popen.returncode:
            return self._failure(culprit, "stopped reporting before its work was done")
        return self._failure(culprit, str(culprit.process.ending()))

    def _check_silence(self) -> None:
        running = [child for child in self._children if not child.finished]
        if running and time.monotonic() - max(child.last_message for child in self._children) > self._stall_seconds:
            quietest = min(running, key=lambda child: child.last_message)
            raise self._failure(quietest, f"and all others were silent for {self._stall_seconds:.0f} s (timeout)")

    def _failure(self, child: _Child, what: str) -> DemoError:
        text = (
            f"{child.spec.name} (rank {child.spec.rank}, pid {child.process.pid}) {what}; "
            f"the end of its log {child.log}:{child.process.tail(LOG_TAIL_LINES)}"
        )
        deadline = time.monotonic() + _AFTERMATH_SECONDS
        for other in self._children:
            if other is child or other.finished:
                continue
            with contextlib.suppress(subprocess.TimeoutExpired):
                other.process.popen.wait(max(0.0, deadline - time.monotonic()))
                text += f"\nthen {other.spec.name} (rank {other.spec.rank}) {other.process.ending()}; its log ends:"
                text += other.process.tail(AFTERMATH_LINES)
        return DemoError(text)

    def end(self) -> None:
        """End every process that still runs: SIGTERM, then SIGKILL after a few seconds. Idempotent."""
        self._group.end()
        for child in self._children:
            child.link.close()
        self._selector.close()
