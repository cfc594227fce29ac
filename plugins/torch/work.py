"""``MltWork``, torch.distributed's Work of a call in progress, and ``CallQueue``, whose threads run the calls."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final, Protocol

from mlt.torch.compilation import untraced_class
from mlt.torch.profiling import recorded_wait
from mlt.torch.recorder import Entry
from mlt.torch.staging import leaves
from mlt.torch.tags import with_user_tags

import torch
import torch.distributed as dist
from mlt.errors import MltError, OperationTimeoutError, PeerFailedError, SizeMismatchError
from torch.futures import Future

_PAUSE_SECONDS: Final = 0.005


def future_pair(source: Future[Any] | None = None) -> tuple[Future[Any], Future[Any]]:
    """A future for ``publish`` (default: one of host memory), and the one to hand out, which follows it."""
    source = Future() if source is None else source
    # An exception raised inside then() becomes the chained future's own error, which C++ waiters understand.
    return source, source.then(_value)


def publish(source: Future[Any], result: Any, error: Exception | None) -> None:
    """Complete ``source``, and with it the future handed out."""
    if error is not None:
        source.set_exception(error)
    else:
        source.set_result(result)


def failure_of(description: object, error: Exception) -> RuntimeError:
    """The error of a call that failed.

    The text of mlt's own errors says it all, so their tracebacks are not shown before it: they are the ``__context__``.
    Other errors are the cause. ``description``: its text is the call's name.
    """
    # c10d's users, its own tests among them, look for the word "timeout".
    note = "its timeout passed: " if isinstance(error, OperationTimeoutError) else ""
    advice = ""
    if isinstance(error, SizeMismatchError) and " called " in str(error):
        # The barrier is that of mlt.torch.bucket_averages before the hook's first bucket.
        advice = " (also the communication hooks of DDP: register them on every rank, or on none)"
    is_of_ddp = any(word in str(description) for word in ("allreduce", "gradient bucket"))
    if is_of_ddp and isinstance(error, PeerFailedError) and " left the job" in str(error):
        advice = " (if it had fewer batches than this rank, train inside DistributedDataParallel's join())"
    failure = RuntimeError(f"{description}: {note}{with_user_tags(str(error))}{advice}")
    failure.__cause__ = None if isinstance(error, MltError) else error
    failure.__context__ = error
    return failure


@untraced_class
class MltWork(dist.Work):
    """A call in progress. ``wait`` raises RuntimeError with the call's name (``failure_of``).

    ``entry``: of the flight recorder.

    (torch's own work-from-future returns True from ``wait`` when the future failed: the caller would use garbage as a
    result. Under torch 2.6, which is too old for mlt, C++ callers wait for ever on a Python subclass.)
    """

    def __init__(self, description: object, future: Future[Any] | None = None, entry: Entry | None = None) -> None:
        super().__init__()
        self._description = description
        self._entry = entry
        self._source, self._future = future_pair(future)
        self._error: Exception | None = None
        self._ended = threading.Event()

    def __str__(self) -> str:
        return str(self._description)

    def run(self, call: Callable[[], None]) -> None:
        """Make the call and wake ``wait``; called once, on a helper thread. ``publish`` must follow."""
        try:
            # The caller's grad mode is not this thread's, and a collective is no part of the graph.
            with torch.no_grad():
                call()
        except Exception as error:
            self._error = failure_of(self._description, error)
        if self._entry is not None:
            self._entry.end(self._error)
        self._ended.set()

    def publish(self, result: Any) -> None:
        """Complete the future with ``result`` or the failure. Runs the callbacks of ``then``, which may wait."""
        publish(self._source, result, self._error)

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        return recorded_wait(lambda: self._wait(timeout))

    def _wait(self, timeout: timedelta) -> bool:
        # The call has a timeout of its own, so it always ends; torch passes 0 for "no other limit".
        limit = timeout.total_seconds() if timeout > timedelta(0) else None
        if not self._ended.wait(limit):
            raise RuntimeError(f"{self._description}: still in progress after {limit:g} s (wait again)")
        if self._error is not None:
            raise self._error from self._error.__cause__
        return True

    @property
    def has_ended(self) -> bool:
        """Whether the call has, also before any wait for it."""
        return self._ended.is_set()

    def is_completed(self) -> bool:
        return self.has_ended

    def is_success(self) -> bool:
        return self._ended.is_set() and self._error is None

    def exception(self) -> Any:
        return self._error

    def result(self) -> list[torch.Tensor]:
        """The tensors of the result, for which this waits."""
        self.wait()
        return leaves(self.get_future().wait())

    def get_future(self) -> Future[Any]:
        return self._future


class Call(Protocol):
    """A call that ``CallQueue`` runs: ``run`` in turn, then ``publish``, whose callbacks may wait for later calls."""

    def run(self, call: Callable[[], None]) -> None: ...

    def publish(self, result: Any) -> None: ...


class CallQueue:
    """Runs calls one after another, in the order of ``submit``. Its threads start with the first call.

    The threads take turns: one runs a call, passes the turn on, and then publishes the result. A callback that waits
    for a later call therefore blocks its own thread only. Whenever all threads publish, another is started.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: queue.SimpleQueue[tuple[Call, Callable[[], None], Any] | None] = queue.SimpleQueue()
        self._turn = threading.Lock()
        self._guard = threading.Lock()  # of the members below
        self._threads: list[threading.Thread] = []
        self._free = 0  # threads that wait for their turn or have it
        self._started = False
        self._unfinished = 0
        self._running: Call | None = None

    def submit(self, work: Call, call: Callable[[], None], result: Any) -> None:
        """Queue a call; ``work`` completes with ``result``."""
        with self._guard:
            self._unfinished += 1
            first, self._started = not self._started, True
        self._calls.put((work, call, result))
        if first:
            self._start_thread()

    @property
    def is_idle(self) -> bool:
        """Whether every call submitted was run (its result may not be published yet)."""
        with self._guard:
            return self._unfinished == 0

    def unfinished(self, left: Callable[[], float]) -> str:
        """Wait for the calls submitted, until ``left()`` is 0 s; the call that runs then, empty if none is left."""
        while not self.is_idle:
            if left() <= 0:
                with self._guard:
                    return str(self._running or "a queued call")
            time.sleep(_PAUSE_SECONDS)
        return ""

    def close(self) -> None:
        """Finish the queued calls, and end the threads."""
        self._calls.put(None)
        while True:
            with self._guard:
                thread = next((one for one in self._threads if one is not threading.current_thread()), None)
                if thread is None:
                    return
                self._threads.remove(thread)
            thread.join()

    def _start_thread(self) -> None:
        with self._guard:
            self._free += 1
            thread = threading.Thread(target=self._serve, name=self._name, daemon=True)
            self._threads.append(thread)
        thread.start()

    def _serve(self) -> None:
        while True:
            with self._turn:
                entry = self._calls.get()
                if entry is None:
                    self._calls.put(None)  # for the other threads
                    return
                work, call, result = entry
                with self._guard:
                    self._running = work
                work.run(call)
                with self._guard:
                    self._running = None
                    self._unfinished -= 1
                    self._free -= 1
                    none_left = self._free == 0
            if none_left:
                self._start_thread()
            work.publish(result)
            del entry, work, call, result  # no reference to a finished call while it sleeps
            with self._guard:
                self._free += 1


def _value(future: Future[Any]) -> Any:
    return future.value()
