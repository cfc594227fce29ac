"""The processes of one run, watched over: started together, listened to, and always ended, together.

The first process that ends badly is the culprit: the others usually fail a moment later because it is gone, and naming
them would mislead.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Final

from pydantic import ValidationError

from mlt._shared.ports import free_port
from mlt.demo.events import Event, Finished, decode
from mlt.demo.problem import DemoError

LOG_TAIL_LINES: Final = 20
AFTERMATH_LINES: Final = 3
_AFTERMATH_SECONDS: Final = 1.0
END_SECONDS: Final = 3.0
EXIT_SECONDS: Final = 30.0
_POLL_SECONDS: Final = 0.1


@dataclass(frozen=True)
class ProcessSpec:
    """``name`` for people; ``module`` is run with the JSON that ``job`` makes of the event pipe's descriptor."""

    name: str
    rank: int
    module: str
    job: Callable[[int], str]


@dataclass
class _Child:
    spec: ProcessSpec
    process: subprocess.Popen[bytes]
    events: int
    log: Path
    rest: bytes = b""
    finished: bool = False
    heard: float = field(default_factory=time.monotonic)


def free_port_pair(host: str = "127.0.0.1") -> int:
    """A TCP port p that is free together with p + 1: torch's store takes the one, mlt's rendezvous the other."""
    try:
        return free_port(host, neighbours=1)
    except LookupError as error:
        raise DemoError(str(error)) from None


class ProcessGroup:
    """Context manager around the processes of a run; on leaving it, none of them is left.

    ``stall_seconds``: how long every process may be silent before the run is given up.
    """

    def __init__(self, specs: Sequence[ProcessSpec], *, environment: dict[str, str], logs: Path, stall_seconds: float):
        self._specs = specs
        self._environment = environment
        self._logs = logs
        self._stall_seconds = stall_seconds
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
        read_end, write_end = os.pipe()
        log = self._logs / f"{spec.name}.log"
        try:
            with log.open("wb") as output:
                process = subprocess.Popen(
                    [sys.executable, "-m", spec.module, spec.job(write_end)],
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    pass_fds=(write_end,),
                    env={**os.environ, **self._environment, "RANK": str(spec.rank)},
                    # Ctrl-C goes to the parent alone, which then ends the children in order.
                    start_new_session=True,
                )
        except BaseException:
            os.close(read_end)
            raise
        finally:
            os.close(write_end)
        child = _Child(spec, process, read_end, log)
        self._children.append(child)
        self._selector.register(read_end, selectors.EVENT_READ, child)

    def events(self) -> Iterator[Event]:
        """Yield what the processes report until all have finished and exited.

        Raises DemoError naming the process and showing the tail of its log when one fails or all fall silent.
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
        data = os.read(child.events, 1 << 16)
        if not data:
            self._selector.unregister(child.events)
            if not child.finished:
                gone.append(child)
            return
        child.heard = time.monotonic()
        *lines, child.rest = (child.rest + data).split(b"\n")
        for line in lines:
            try:
                event = decode(line)
            except ValidationError as error:
                raise self._failure(child, f"reported something unreadable ({error.error_count()} errors)") from error
            child.finished = child.finished or isinstance(event, Finished)
            yield event

    def _expect_exit(self, child: _Child, seconds: float) -> None:
        try:
            code = child.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise self._failure(child, "reported its end but is still running") from None
        if code != 0:
            raise self._failure(child, _describe_exit(code))

    def _end_of(self, gone: list[_Child]) -> DemoError:
        """The error for processes that closed their pipe too early, seen in the same instant."""
        for child in gone:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.process.wait(END_SECONDS)
        # One that a signal ended did not choose to; the others may have given up because of it.
        culprit = min(gone, key=lambda child: child.process.returncode is None or child.process.returncode >= 0)
        code = culprit.process.returncode
        if code is None or code == 0:
            return self._failure(culprit, "stopped reporting before its work was done")
        return self._failure(culprit, _describe_exit(code))

    def _check_silence(self) -> None:
        running = [child for child in self._children if not child.finished]
        if running and time.monotonic() - max(child.heard for child in self._children) > self._stall_seconds:
            quietest = min(running, key=lambda child: child.heard)
            raise self._failure(quietest, f"and all others were silent for {self._stall_seconds:.0f} s (timeout)")

    def _failure(self, child: _Child, what: str) -> DemoError:
        text = (
            f"{child.spec.name} (rank {child.spec.rank}, pid {child.process.pid}) {what}; "
            f"the end of its log {child.log}:\n{_tail(child.log, LOG_TAIL_LINES)}"
        )
        deadline = time.monotonic() + _AFTERMATH_SECONDS
        for other in self._children:
            if other is child or other.finished:
                continue
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = other.process.wait(max(0.0, deadline - time.monotonic()))
                text += f"\nthen {other.spec.name} (rank {other.spec.rank}) {_describe_exit(code)}; its log ends:\n"
                text += _tail(other.log, AFTERMATH_LINES)
        return DemoError(text)

    def end(self) -> None:
        """End every process that still runs: asked first, killed after a few seconds. Harmless when repeated."""
        running = [child for child in self._children if child.process.poll() is None]
        for child in running:
            child.process.terminate()
        deadline = time.monotonic() + END_SECONDS
        for child in running:
            try:
                child.process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.process.kill()
                child.process.wait()
        for child in self._children:
            if child.process.stdin is not None and not child.process.stdin.closed:
                child.process.stdin.close()
                os.close(child.events)
        self._selector.close()


def _tail(log: Path, lines: int) -> str:
    tail = log.read_text(errors="replace").splitlines()[-lines:]
    return "\n".join(f"  | {line}" for line in tail) or "  | (nothing)"


def _describe_exit(code: int) -> str:
    if code >= 0:
        return f"ended with exit status {code}"
    with contextlib.suppress(ValueError):
        return f"was killed by {signal.Signals(-code).name}"
    return f"was killed by signal {-code}"
