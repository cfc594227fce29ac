"""The processes of one job on this machine: started together, output with the rank in front, ended together."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import IO, Any

# From asking to killing.
TERMINATE_SECONDS = 2.0
_POLL_SECONDS = 0.02
_CHUNK = 65_536


@dataclass(frozen=True)
class Ending:
    """How one process ended. ``code`` as a shell gives it: 128 and the signal's number if it was killed.

    ``ended_by_us``: because another process had failed, or the run was interrupted.
    """

    name: str
    code: int
    ended_by_us: bool


@dataclass(frozen=True)
class Outcome:
    """``code``: 0 if every process succeeded, else that of the first to fail. ``endings`` by rank."""

    code: int
    endings: tuple[Ending, ...]
    seconds: float


Write = Callable[[int, bytes], None]
# Starts the process of one rank with the arguments of ``subprocess.Popen`` given.
Start = Callable[..., "subprocess.Popen[bytes]"]


def to_stdout(rank: int, line: bytes) -> None:
    """``[rank] line``, whole lines only."""
    sys.stdout.buffer.write(b"[%d] %s\n" % (rank, line))
    sys.stdout.buffer.flush()


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Let SIGTERM and SIGHUP take the way of Ctrl-C, so that cleaning up happens then too."""

    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    previous = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Cleaning up, once begun, goes to its end; it is bounded in time."""
    numbers = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
    previous = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def run(names: Sequence[str], start: Start, *, grace: float = 5.0, write: Write = to_stdout) -> Outcome:
    """Run ``start(rank, **options)`` for each of ``names`` until all have ended.

    When one fails, the others have ``grace`` seconds to end by themselves, then they are ended. ``write`` gets
    (rank, line); it is called by one thread at a time, and never once this has ended. KeyboardInterrupt ends all
    processes and goes on, and so does BrokenPipeError, when nobody reads any more what ``write`` writes.
    """
    began = time.monotonic()
    lock = threading.Lock()
    processes: list[subprocess.Popen[bytes]] = []
    readers: list[threading.Thread] = []

    unread = threading.Event()
    over = threading.Event()

    def locked_write(rank: int, line: bytes) -> None:
        with lock:
            # Nothing is written any more, but read on: a full pipe would stop the process for good. What is written by
            # a thread while the interpreter ends aborts it.
            if unread.is_set() or over.is_set():
                return
            try:
                write(rank, line)
            except BrokenPipeError:
                unread.set()

    ours: set[int] = set()
    order: list[int] = []
    try:
        for rank in range(len(names)):
            process = start(
                rank, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, bufsize=0,
                start_new_session=True,
            )  # fmt: skip
            processes.append(process)
            reader = threading.Thread(target=_read, args=(rank, process.stdout, locked_write), daemon=True)
            reader.start()
            readers.append(reader)
        _wait(processes, order, ours, grace, unread)
    except BaseException:
        with uninterrupted():
            ours.update(rank for rank, process in enumerate(processes) if process.poll() is None)
            _end(processes)
        raise
    finally:
        for reader in readers:
            # A grandchild may hold the pipe open.
            reader.join(timeout=1.0)
        is_free = lock.acquire(timeout=1.0)
        over.set()
        if is_free:
            lock.release()
    codes = [process.returncode if process.returncode >= 0 else 128 - process.returncode for process in processes]
    failed = [rank for rank in order if codes[rank] != 0]
    endings = tuple(Ending(name, codes[rank], rank in ours) for rank, name in enumerate(names))
    return Outcome(codes[failed[0]] if failed else 0, endings, time.monotonic() - began)


def _wait(
    processes: list[subprocess.Popen[bytes]], order: list[int], ours: set[int], grace: float, unread: threading.Event
) -> None:
    deadline: float | None = None
    while len(order) < len(processes):
        if unread.is_set():
            raise BrokenPipeError
        for rank, process in enumerate(processes):
            if rank not in order and process.poll() is not None:
                order.append(rank)
                if process.returncode != 0 and deadline is None:
                    deadline = time.monotonic() + grace
        if deadline is not None and time.monotonic() >= deadline:
            left = [rank for rank in range(len(processes)) if rank not in order]
            ours.update(left)
            _end([processes[rank] for rank in left])
            order += left
            return
        time.sleep(_POLL_SECONDS)


def _end(processes: list[subprocess.Popen[bytes]]) -> None:
    """SIGTERM to every process group, then SIGKILL to what is left."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        for process in processes:
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, number)
        deadline = time.monotonic() + TERMINATE_SECONDS
        for process in processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=max(0.0, deadline - time.monotonic()))


def _read(rank: int, pipe: IO[bytes] | Any, write: Write) -> None:
    rest = b""
    while chunk := pipe.read(_CHUNK):
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            write(rank, line.rstrip(b"\r"))
        if len(rest) > _CHUNK:  # a line without an end must not fill the memory
            write(rank, rest)
            rest = b""
    if rest:
        write(rank, rest)
