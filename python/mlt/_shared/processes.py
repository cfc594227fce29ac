"""The processes of one run on this machine: started together, watched over, and always ended together.

``Group`` is that for any run; ``run`` is a whole run of it, with the rank in front of each line of output.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO, Any

from mlt._shared.first_failure import FailureLog
from mlt._shared.link import Link, LinkError, Message
from mlt._shared.units import format_time

# From asking to killing.
TERMINATE_SECONDS = 3.0
# Of a process whose parent is gone.
ORPHANED = 75
# After the first end that others do not follow.
LINGERING_SECONDS = 5.0
_TAIL_BYTES = 4_096
_POLL_SECONDS = 0.02
_CHUNK = 65_536


@dataclass(frozen=True)
class Ending:
    """The end of one process. ``code`` as a shell gives it: 128 and the signal's number if it was killed.

    ``ended_by_us``: because another process had failed, or the run was interrupted. ``was_stopped``: the run ended it,
    because a signal had stopped it (SIGSTOP, Ctrl-Z) and nothing but it was left to wait for; it counts as failed.
    """

    name: str
    code: int
    ended_by_us: bool
    was_stopped: bool = False

    def __str__(self) -> str:
        """For texts: "ended with exit code 7", the signal that killed it, or that it was stopped."""
        if self.was_stopped:
            return "was stopped by a signal (SIGSTOP), did not continue, and was ended"
        with contextlib.suppress(ValueError):
            killer = signal.Signals(self.code - 128)
            cause = ", often because the host is out of memory (dmesg)" if killer == signal.SIGKILL else ""
            return f"ended with exit code {self.code}: killed by {killer.name}{cause}"
        return f"ended with exit code {self.code}"


@dataclass(frozen=True)
class Outcome:
    """``code``: 0 if every process succeeded, else that of the first to fail; 1 if only ended ones did not succeed.
    ``endings`` by process; ``first`` is that of the first to fail."""

    code: int
    endings: tuple[Ending, ...]
    seconds: float
    first: Ending | None = None


Write = Callable[[int, bytes], None]
# Starts the process of one rank with the arguments of ``subprocess.Popen`` given.
Start = Callable[..., "subprocess.Popen[bytes]"]


def to_stdout(rank: int, line: bytes) -> None:
    """``[rank] line``, whole lines only."""
    sys.stdout.buffer.write(b"[%d] %s\n" % (rank, line))
    sys.stdout.buffer.flush()


class Interrupted(KeyboardInterrupt):
    """A signal that ends the command; ``status`` is its exit status, as a shell reports it."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.status = 128 + number


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Let SIGTERM and SIGHUP take the way of Ctrl-C, so that cleaning up happens then too."""

    def interrupt(number: int, _frame: FrameType | None) -> None:
        raise Interrupted(number)

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


@dataclass(frozen=True)
class Process:
    """One process of a group; ``log`` is the file that its output goes to, if it goes to one."""

    name: str
    popen: subprocess.Popen[bytes]
    log: IO[bytes] | None = None

    @property
    def pid(self) -> int:
        return self.popen.pid

    def ending(self) -> str | None:
        """The process's end, in words; None while it runs."""
        code = self.popen.poll()
        if code is None or code >= 0:
            return None if code is None else f"ended with exit status {code}"
        with contextlib.suppress(ValueError):
            return f"was killed by {signal.Signals(-code).name}"
        return f"was killed by signal {-code}"

    def is_stopped(self) -> bool:
        """Whether a signal has stopped it (Ctrl-Z, SIGSTOP)."""
        with contextlib.suppress(OSError):
            return Path(f"/proc/{self.pid}/stat").read_text(encoding="latin-1").rpartition(")")[2].split()[0] == "T"
        return False

    def tail(self, lines: int) -> str:
        """The last lines of its log, each on a line of its own with a bar in front."""
        if self.log is None:
            return ""
        text = b""
        with contextlib.suppress(OSError, ValueError):  # closed meanwhile
            file = self.log.fileno()
            # The position in the file is the process's, too.
            text = os.pread(file, _TAIL_BYTES, max(os.fstat(file).st_size - _TAIL_BYTES, 0))
        return "".join(f"\n  | {line}" for line in text.decode(errors="replace").strip().splitlines()[-lines:])


class Group:
    """Processes, each in a session of its own: Ctrl-C goes to the parent alone, which then ends them in order."""

    def __init__(self) -> None:
        self.processes: list[Process] = []

    def start(self, name: str, start: Callable[..., subprocess.Popen[Any]], log: IO[bytes] | None = None) -> Process:
        """``start(**options)`` with the arguments of ``subprocess.Popen``. Output goes to ``log``, else to a pipe."""
        output = subprocess.PIPE if log is None else log
        popen = start(
            stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, bufsize=0, start_new_session=True
        )
        process = Process(name, popen, log)
        self.processes.append(process)
        return process

    def end(self, *, patience: float = 0.0) -> None:
        """End all that still run and close their logs: after ``patience`` seconds SIGTERM to their sessions, then
        SIGKILL to what is left. Harmless when repeated."""
        end(self.processes, patience=patience)
        for process in self.processes:
            if process.log is not None:
                process.log.close()


def end(processes: Sequence[Process], *, patience: float = 0.0) -> None:
    """SIGTERM to the session of each that still runs after ``patience`` seconds, then SIGKILL to what is left.

    A stopped process gets SIGTERM only once it continues, so SIGCONT follows.
    """
    for number, seconds in ((None, patience), (signal.SIGTERM, TERMINATE_SECONDS), (signal.SIGKILL, TERMINATE_SECONDS)):
        running = [process.popen for process in processes if process.popen.poll() is None]
        for popen in running:
            for one in () if number is None else (number, signal.SIGCONT):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(popen.pid, one)
        deadline = time.monotonic() + seconds
        for popen in running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                popen.wait(timeout=max(0.0, deadline - time.monotonic()))


def end_with_parent(link: Link, on_message: Callable[[Message], object] = lambda message: None) -> None:
    """In a thread of its own, pass messages of the parent to ``on_message``, and end this process when the parent
    has ended for any reason: the main thread may be inside a library call that never returns."""

    def listen() -> None:
        with contextlib.suppress(LinkError):
            while True:
                on_message(link.receive())
        os._exit(ORPHANED)

    threading.Thread(target=listen, name="mlt-parent", daemon=True).start()


def run(
    names: Sequence[str],
    start: Start,
    *,
    grace: float = 5.0,
    write: Write = to_stdout,
    services: int = 0,
    max_failed: int = 0,
    max_failed_services: int = 0,
    failed: Callable[[Ending], object] = lambda ending: None,
    spared: Callable[[Ending], object] = lambda ending: None,
    lingering: Callable[[str], object] = lambda text: None,
    all_services_may_fail: bool = False,
    failures: FailureLog | None = None,
    first_rank: int = 0,
    joining: Callable[[], Sequence[str]] = tuple,
) -> Outcome:
    """Run ``start(rank, **options)`` for each of ``names`` until all have ended.

    When one fails, the others have ``grace`` seconds to end by themselves, then they are ended; so have the last
    ``services`` processes when all others have ended: they then have no client. The first ``max_failed`` failures of
    processes that are no services, and the first ``max_failed_services`` of services, end no other, unless all fail,
    and do not count for the outcome's code; ``spared`` gets each. ``write`` gets (rank, line); it
    is called by one thread at a time, and never once this has ended. ``failed`` gets the first failure at once, if
    others still run. ``lingering`` gets a text about those that still run seconds after others succeeded, once.

    Once others have succeeded and all that are left, besides services, are stopped (SIGSTOP), these have ``grace``
    seconds to continue, which ``lingering`` tells; then they are ended, and count as failed. So does a service that is
    stopped when the services' time ends. ``all_services_may_fail``: the others continue also without a service, and if
    one of them succeeds, no service's failure counts.

    KeyboardInterrupt ends all processes and continues, and so does what ``write`` raises, such as BrokenPipeError when
    nobody reads any more, or an error of a disk that is full. ``failures``: what these processes record of their
    failures, by their ranks, which begin at ``first_rank``; without it the first to end is the first to fail.
    ``joining``: asked again and again for the names of processes to start in addition, which are no services.
    """
    serving = range(len(names) - services, len(names))
    everyone = list(names)
    began = time.monotonic()
    lock = threading.Lock()
    group = Group()
    readers: list[threading.Thread] = []

    unwritten: list[Exception] = []
    over = threading.Event()

    def locked_write(rank: int, line: bytes) -> None:
        with lock:
            # Nothing is written any more, but read on: a full pipe would stop the process for good. What is written by
            # a thread while the interpreter ends aborts it.
            if unwritten or over.is_set():
                return
            try:
                write(rank, line)
            except Exception as error:
                unwritten.append(error)

    ours: set[int] = set()
    stopped: set[int] = set()  # ended for that reason
    ended: dict[int, float] = {}
    silent_since: dict[int, float] = {}  # the end of the output

    def start_one(rank: int) -> None:
        process = group.start(everyone[rank], functools.partial(start, rank))
        reader = threading.Thread(
            target=_read, args=(rank, process.popen.stdout, locked_write, silent_since), daemon=True
        )
        reader.start()
        readers.append(reader)

    def grow() -> None:
        for name in joining():
            everyone.append(name)
            start_one(len(everyone) - 1)

    try:
        for rank in range(len(names)):
            start_one(rank)
        _wait(
            group.processes,
            ended,
            silent_since,
            ours,
            stopped,
            grace,
            unwritten,
            serving,
            (max_failed, max_failed_services),
            all_services_may_fail,
            failed,
            spared,
            lingering,
            grow,
        )
    except BaseException:
        with uninterrupted():
            ours.update(rank for rank, process in enumerate(group.processes) if process.ending() is None)
            group.end()
        raise
    finally:
        for reader in readers:
            # A grandchild may hold the pipe open.
            reader.join(timeout=1.0)
        is_free = lock.acquire(timeout=1.0)
        over.set()
        if is_free:
            lock.release()
    codes = [_code_of(process) for process in group.processes]
    endings = tuple(Ending(name, codes[rank], rank in ours, rank in stopped) for rank, name in enumerate(everyone))
    seconds = time.monotonic() - began
    itself = {rank: when for rank, when in ended.items() if (codes[rank] != 0 and rank not in ours) or rank in stopped}
    workers = set(range(len(everyone))) - set(serving)
    for kind, most in ((workers, max_failed), (set(serving), max_failed_services)):
        is_without = all_services_may_fail and kind.isdisjoint(workers) and workers.isdisjoint(itself)
        if is_without or len(itself.keys() & kind) <= min(most, len(kind) - 1):
            itself = {rank: when for rank, when in itself.items() if rank not in kind}
    if not itself:
        return Outcome(int(bool(ours)), endings, seconds)
    first = min(itself, key=itself.__getitem__)
    if failures is not None:
        first = failures.first({first_rank + rank: when for rank, when in itself.items()}) - first_rank
    return Outcome(codes[first] or 1, endings, seconds, endings[first])


def _code_of(process: Process) -> int:
    """The exit status as a shell gives it."""
    code = process.popen.returncode
    return code if code >= 0 else 128 - code


def _wait(
    processes: list[Process],
    ended: dict[int, float],
    silent_since: Mapping[int, float],
    ours: set[int],
    stopped: set[int],
    grace: float,
    unwritten: Sequence[Exception],
    serving: range,
    max_failed: tuple[int, int],
    all_services_may_fail: bool,
    failed: Callable[[Ending], object],
    spared: Callable[[Ending], object],
    lingering: Callable[[str], object],
    grow: Callable[[], object],
) -> None:
    deadline: float | None = None
    has_failed = False  # more than is permitted
    speaks: float | None = None  # when those that linger are named
    stall = _Stall(grace, lingering)
    looked_at = 0.0

    def permits(kind: set[int], most: int) -> bool:
        """Whether so many of one kind, ended or about to be, may have failed."""
        lost = {one for one in (kind & set(ended)) - ours if processes[one].popen.returncode != 0} | (kind & stopped)
        return len(lost) <= most

    while len(ended) < len(processes):
        if unwritten:
            raise unwritten[0]
        if deadline is None:
            grow()
        served = set(range(len(processes))) - set(serving)
        most_of_services = max_failed[1] if all_services_may_fail else min(max_failed[1], len(serving) - 1)
        before = time.monotonic()
        for rank, process in enumerate(processes):
            if rank not in ended and process.ending() is not None:
                # The system closes a process's output before its connections, so before its peers notice its end.
                ended[rank] = max(looked_at, min(silent_since.get(rank, math.inf), time.monotonic()))
                is_last_served = len(serving) > 0 and served <= set(ended)
                failed_itself = process.popen.returncode != 0 or rank in stopped
                kind = served if rank in served else set(serving)
                is_permitted = permits(
                    kind, min(max_failed[0], len(served) - 1) if rank in served else most_of_services
                )
                if failed_itself and is_permitted:
                    spared(Ending(process.name, _code_of(process), False, rank in stopped))
                    failed_itself = False
                    if not is_last_served:
                        continue
                has_failed = has_failed or failed_itself
                if (failed_itself or is_last_served) and deadline is None:
                    deadline = time.monotonic() + grace
                    others = [one for other, one in enumerate(processes) if other not in ended]
                    if failed_itself and any(one.ending() is None for one in others):
                        failed(Ending(process.name, _code_of(process), False, rank in stopped))
        looked_at = before
        if speaks is None and served & set(ended):
            speaks = time.monotonic() + LINGERING_SECONDS
        if deadline is None and stall.is_over({rank: processes[rank] for rank in sorted(served)}, ended):
            left = served - set(ended)
            stopped.update(left)
            end([processes[rank] for rank in left])
            continue
        if stall.was_told:
            speaks = math.inf
        if speaks is not None and time.monotonic() >= speaks and deadline is None:
            lingering(_lingering_text({rank: processes[rank] for rank in sorted(served)}, list(ended)))
            speaks = math.inf
        if deadline is not None and time.monotonic() >= deadline:
            left = {rank for rank in range(len(processes)) if rank not in ended}
            if not has_failed:  # these are services, which nobody waits for
                stopped.update(rank for rank in left if processes[rank].is_stopped())
            ours.update(left - stopped)
            end([processes[rank] for rank in sorted(left)])
            ended.update(dict.fromkeys(left, time.monotonic()))
            if permits(set(serving), most_of_services):
                for rank in sorted(left & stopped):
                    spared(Ending(processes[rank].name, _code_of(processes[rank]), False, True))
            return
        time.sleep(_POLL_SECONDS)


class _Stall:
    """Whether only stopped processes are left, others having succeeded, for as long as the grace. Time in which this
    process itself was stopped does not count."""

    def __init__(self, grace: float, tell: Callable[[str], object]) -> None:
        self._grace = grace
        self._tell = tell
        self._seconds = 0.0
        self._looked_at = 0.0
        self._told: set[int] = set()

    @property
    def was_told(self) -> bool:
        return bool(self._told)

    def is_over(self, processes: Mapping[int, Process], ended: Mapping[int, float]) -> bool:
        """Look at the processes that are no services."""
        before, self._looked_at = self._looked_at, time.monotonic()
        left = [rank for rank in processes if rank not in ended]
        has_succeeded = any(processes[rank].popen.returncode == 0 for rank in processes if rank in ended)
        if not left or not has_succeeded or not all(processes[rank].is_stopped() for rank in left):
            self._seconds = 0.0
            return False
        if not self._told >= set(left):
            self._told.update(left)
            self._seconds = 0.0
            they = "it is" if len(left) == 1 else "they are"
            self._tell(f"{_lingering_text(processes, list(ended))}; else {they} ended in {format_time(self._grace)}")
            return False
        self._seconds += min(self._looked_at - before, 10 * _POLL_SECONDS)
        return self._seconds >= self._grace


def _lingering_text(processes: Mapping[int, Process], ended: Sequence[int]) -> str:
    first = next(one.name for rank, one in processes.items() if rank in ended)
    left = [one for rank, one in processes.items() if rank not in ended]
    stopped = "".join(
        f"; {one.name} is stopped, and kill -CONT {one.pid} continues it" for one in left if one.is_stopped()
    )
    names = ", ".join(one.name for one in left)
    return f"{first} has ended; still waiting for {names}{stopped}"


def _read(rank: int, pipe: IO[bytes] | Any, write: Write, silent_since: dict[int, float]) -> None:
    rest = b""
    while chunk := pipe.read(_CHUNK):
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            write(rank, line.rstrip(b"\r"))
        if len(rest) > _CHUNK:  # a line without an end must not fill the memory
            write(rank, rest)
            rest = b""
    silent_since[rank] = time.monotonic()
    if rest:
        write(rank, rest)
