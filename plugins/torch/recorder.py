"""The last calls of this rank, written to a file when one fails (``MLT_FLIGHT_RECORDER``).

Like the flight recorder of torch's own backends (``TORCH_FR_BUFFER_SIZE``), which has no calls of a backend in Python.
``mlt doctor --recorder FOLDER`` compares the files of all ranks.
"""

from __future__ import annotations

import atexit
import functools
import logging
import os
import socket
import threading
import time
import weakref
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from mlt.torch.staging import leaves

import torch.distributed as dist
from mlt._shared.flight_record import Call, Record, State
from mlt._shared.output_files import UnwritableError, check_folder, write_text
from mlt.errors import ConfigError

logger = logging.getLogger("mlt")
VARIABLE: Final = "MLT_FLIGHT_RECORDER"
CAPACITY: Final = 512  # calls
# Calls that fail together follow each other quickly, and share a file: of the first, then of all.
SECONDS_BETWEEN_FILES: Final = 1.0


class InProgress(Protocol):
    """A call that an entry watches, and that may have ended without anybody waiting for it."""

    @property
    def has_ended(self) -> bool: ...


class Entry:
    """One call, from its start on. ``end`` records its end, only once; an error writes the file."""

    __slots__ = ("_began", "_error", "_group", "_number", "_recorder", "_seconds", "_size", "_types", "_what", "_work")

    def __init__(self, recorder: FlightRecorder, what: str, group: str, number: int | None, tensors: Any) -> None:
        held = leaves(tensors)
        self._recorder = recorder
        self._what = what
        self._group = group
        self._number = number
        self._size = sum(tensor.numel() * tensor.element_size() for tensor in held)  # sparse ones have no nbytes
        self._types = {tensor.dtype for tensor in held}
        self._work: weakref.ref[InProgress] | None = None
        self._began = time.time()
        self._seconds: float | None = None
        self._error: str | None = None

    def watch(self, work: InProgress) -> None:
        """``work`` knows whether the call has ended; no reference to it is kept."""
        self._work = weakref.ref(work)

    def end(self, error: Exception | None) -> None:
        if self._seconds is not None:
            return
        self._seconds = time.time() - self._began
        if error is not None:
            self._error = str(error)
            self._recorder.write()

    def described(self) -> Call:
        """The call as in the file."""
        return Call(
            call=self._what,
            group=self._group,
            number=self._number,
            bytes=self._size,
            types=sorted(str(one).removeprefix("torch.") for one in self._types),
            began=self._began,
            seconds=self._seconds,
            state=self._state(),
            error=self._error,
        )

    def _state(self) -> State:
        if self._error is not None:
            return "failed"
        work = None if self._work is None else self._work()
        if self._seconds is not None:
            return "completed"
        return "ended" if self._work is not None and (work is None or work.has_ended) else "in progress"


class FlightRecorder:
    """The last ``CAPACITY`` calls of this process. ``folder``: of the files, made when the first is written."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._entries: deque[Entry] = deque(maxlen=CAPACITY)
        self._lock = threading.Lock()  # of the file
        self._guard = threading.Lock()  # of the entries
        self._written: float | None = None
        self._wanted = False  # since the last time
        self._later: threading.Timer | None = None
        self._pid = os.getpid()

    def begin(self, what: str, group: str, number: int | None, tensors: Any) -> Entry:
        """Record a call that starts now."""
        entry = Entry(self, what, group, number, tensors)
        with self._guard:
            self._entries.append(entry)
        return entry

    def write(self) -> None:
        """Write the file of this rank: now, or a moment after the last time, or when the process ends.

        Whatever goes wrong is logged, not raised: the failed call has an error of its own.
        """
        self._wanted = True
        self._write_if_due()

    def flush(self) -> None:
        """At the end of the process: write what would be written in a moment."""
        if os.getpid() == self._pid:
            self._write_if_due(at_once=True)

    def _write_if_due(self, *, at_once: bool = False) -> None:
        # Whoever fails while the file is written, perhaps in a finalizer of the same thread, leaves it to the writer.
        while self._wanted and self._lock.acquire(blocking=False):
            try:
                due = 0.0 if self._written is None else self._written + SECONDS_BETWEEN_FILES
                wait = due - time.monotonic()
                if wait > 0 and not at_once:
                    self._write_after(wait)
                    return
                self._wanted = False
                self._write()
            finally:
                self._lock.release()

    def _write_after(self, seconds: float) -> None:
        if self._later is None:
            self._later = threading.Timer(seconds, self._write_later)
            self._later.daemon = True
            self._later.start()

    def _write_later(self) -> None:
        self._later = None
        self._write_if_due()

    def _write(self) -> None:
        try:
            self._written = time.monotonic()
            record = self._record()
            path = self._folder / record.file_name
            self._folder.mkdir(parents=True, exist_ok=True)
            write_text(path, record.model_dump_json(indent=1) + "\n")
            logger.warning("rank %d: a call failed: its last %d calls are in %s", record.rank, len(record.calls), path)
        except Exception as error:
            logger.warning("the flight recorder cannot write to %s: %s", self._folder, error)

    def _record(self) -> Record:
        if _replica is not None:
            rank, size = _replica.rank, _replica.count
        elif dist.is_initialized():
            rank, size = dist.get_rank(), dist.get_world_size()
        else:
            rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
        with self._guard:
            entries = list(self._entries)
        return Record(
            rank=rank,
            world_size=size,
            host=socket.gethostname(),
            pid=os.getpid(),
            written=time.time(),
            calls=[entry.described() for entry in entries],
            replica="" if _replica is None else _replica.name,
        )


@dataclass(frozen=True)
class Replica:
    """This process as torchft knows it: its ``rank`` in a set of ``count`` replicas."""

    name: str
    rank: int
    count: int


_replica: Replica | None = None


def use_replica(replica: Replica) -> None:
    """From now on the file is that of a replica."""
    global _replica
    _replica = replica


def check() -> None:
    """Raise ConfigError if ``MLT_FLIGHT_RECORDER`` names a folder in which no file can be written. Makes no folder."""
    folder = os.environ.get(VARIABLE)
    if not folder:
        return
    try:
        check_folder(Path(folder))
    except UnwritableError as error:
        raise ConfigError(
            f"{VARIABLE} is {folder!r}, which cannot be written: {error.reason}; name a folder for the files of all "
            "ranks, or unset it"
        ) from None


def begin(what: str, group: str, number: int | None, tensors: Any) -> Entry | None:
    """Record a call of ``group`` that starts now; None without ``MLT_FLIGHT_RECORDER``.

    ``number``: of the call in its group, from 1; None where calls have none. ``tensors``: nested lists of them.
    """
    recorder = _of_this_process()
    return None if recorder is None else recorder.begin(what, group, number, tensors)


# A child has calls of its own, and its parent's locks may be held.
@functools.cache
def _of_this_process() -> FlightRecorder | None:
    folder = os.environ.get(VARIABLE)
    if not folder:
        return None
    recorder = FlightRecorder(Path(folder))
    atexit.register(recorder.flush)
    return recorder


os.register_at_fork(after_in_child=_of_this_process.cache_clear)
