"""Completion callbacks of operations, and the thread per context that calls them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mlt import _waits
from mlt.errors import MltError, UnknownOperationError

if TYPE_CHECKING:
    from mlt import _core
    from mlt.context import Context
    from mlt.operation import Operation

logger = logging.getLogger("mlt")

Callback = Callable[[Any], object]


class Watch:
    """The completion of an operation with callbacks. The thread that takes the completion passes it to ``settle``."""

    __slots__ = ("_callbacks", "_ended", "_lock", "_op", "native")

    def __init__(self, op: Operation) -> None:
        self._op: Operation | None = op  # reset in settle: operation and watch refer to each other
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._callbacks: list[Callback] = []
        self.native: _core.Completion | None = None

    def add(self, op: Operation, function: Callback) -> None:
        """Call ``function(op)`` on completion, or now if the operation has completed."""
        with self._lock:
            if self.native is None:
                self._callbacks.append(function)
                return
        _call(function, op)

    def settle(self, native: _core.Completion) -> None:
        """Record the completion, wake the waiting threads and call the callbacks."""
        with self._lock:
            op, self._op, self.native = self._op, None, native
            callbacks, self._callbacks = self._callbacks, []
        self._ended.set()
        for function in callbacks:
            _call(function, op)

    def wait(self, op: Operation, timeout: float | None) -> _core.Completion | None:
        """The completion; None if ``timeout`` seconds passed first."""
        if self.native is None:
            Callbacks.refuse_to_wait(op)
            quiet = _waits.QUIET_SECONDS
            if timeout is None or timeout > quiet:
                if self._ended.wait(quiet):
                    return self.native
                op.on_quiet(quiet)
                timeout = None if timeout is None else timeout - quiet
            self._ended.wait(timeout)
        return self.native


def _call(function: Callback, op: Operation | None) -> None:
    try:
        function(op)
    except BaseException:  # including SystemExit: it would end the thread that all other callbacks need
        logger.exception("%s: a completion callback raised", op)


class Callbacks:
    """The thread that takes the completions of a context's watched operations; started with the first of them."""

    _creation = threading.Lock()

    def __init__(self, context: Context) -> None:
        # A strong reference while the thread runs: the atexit handler can then close a context that the program
        # dropped.
        self._context = context
        self._lock = threading.Lock()
        self._watches: dict[int, Watch] = {}
        self._is_over = False
        self._thread = threading.Thread(target=self._run, name="mlt-callbacks", daemon=True)

    @classmethod
    def of(cls, context: Context) -> Callbacks:
        """The callback thread of ``context``, started on first use."""
        with cls._creation:
            if context._callbacks is None:
                context._callbacks = cls(context)
                context._callbacks._thread.start()
            return context._callbacks

    @classmethod
    def refuse_to_wait(cls, op: Operation) -> None:
        """Raise MltError if called on the thread that calls callbacks."""
        callbacks = op.context._callbacks
        if callbacks is not None and callbacks._thread is threading.current_thread():
            raise MltError(
                f"{op}: waiting for it inside a completion callback would never end; add a callback to it instead"
            )

    def watch(self, op: Operation) -> Watch:
        """Route the completion of ``op`` to its watch. Raises UnknownOperationError if it was taken before."""
        watch = Watch(op)
        with self._lock:
            if op._watch is not None:
                return op._watch
            self._watches[op.id] = op._watch = watch
        # From here on, the thread that takes the completion settles the watch.
        if self._context.engine.watch(op.id):
            if self._is_over:
                self._take(op, watch)
            return watch
        if (native := op.taken()) is not None:
            self.forget(op)
            watch.settle(native)
        elif not op.is_told and watch.native is None:
            self.forget(op)
            op._watch = None
            raise UnknownOperationError(
                f"rank {self._context.rank}: the completion of the {op} was taken already: add callbacks before"
            )
        return watch

    def _take(self, op: Operation, watch: Watch) -> None:
        """Take the completion here: the context was closed and the callback thread has ended."""
        try:
            native = self._context.engine.wait(op.id, 0)
        except UnknownOperationError:
            return  # another thread took the completion and settles the watch
        if native is not None:
            if self._context._recorder is not None:
                self._context._recorder.add((native,))
            self.forget(op)
            watch.settle(native)

    def forget(self, op: Operation) -> None:
        """Stop watching ``op``: a thread that waited for it took its completion."""
        with self._lock:
            self._watches.pop(op.id, None)

    def join(self) -> None:
        """Wait until the callback thread ends; it ends after the engine. No-op on that thread (a callback closed the
        context)."""
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        engine = self._context.engine
        while (native := engine.next_watched(-1)) is not None:
            if self._context._recorder is not None:
                self._context._recorder.add((native,))
            with self._lock:
                watch = self._watches.pop(native.operation, None)
            if watch is not None:
                watch.settle(native)
            del watch, native
        self._is_over = True
        with self._lock:
            late, self._watches = list(self._watches.values()), {}
        for watch in late:
            if watch.native is None and watch._op is not None:
                self._take(watch._op, watch)
