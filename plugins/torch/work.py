"""``MltWork``, torch.distributed's Work of a call in progress, and the thread that runs the calls."""

from __future__ import annotations

import queue
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.futures import Future


class MltWork(dist.Work):
    """A call in progress. ``wait`` raises RuntimeError with the call's name; its cause is the transport's own error.

    (torch's own work-from-future returns True from ``wait`` when the future failed: the caller would use garbage as a
    result. This needs torch >= 2.13: under 2.6, C++ callers wait for ever on a Python subclass.)
    """

    def __init__(self) -> None:
        super().__init__()
        self._source: Future[Any] = Future()
        # An exception raised inside then() becomes the chained future's own error, which C++ waiters understand.
        self._future: Future[Any] = self._source.then(_value)
        self._error: Exception | None = None

    def complete(self, run: Callable[[], None], result: Any, description: str) -> None:
        """Run the call and complete the future with ``result`` or the failure; called once, on a helper thread."""
        try:
            run()
        except Exception as error:
            self._error = RuntimeError(f"{description}: {error}")
            self._error.__cause__ = error
            self._source.set_exception(self._error)
            return
        self._source.set_result(result)

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        # The call has a timeout of its own, so the future always completes; torch passes 0 for "no other limit".
        try:
            self._future.wait()
        except RuntimeError:
            if self._error is None:
                raise
            raise self._error from self._error.__cause__
        return True

    def is_completed(self) -> bool:
        return self._future.done()

    def is_success(self) -> bool:
        return self._future.done() and self._error is None

    def exception(self) -> Any:
        return self._error

    def get_future(self) -> Future[Any]:
        return self._future


def serve(calls: queue.SimpleQueue[Callable[[], None] | None]) -> None:
    """Run queued calls until None arrives. Holds no reference to a finished call while it sleeps."""
    while True:
        call = calls.get()
        if call is None:
            return
        call()
        del call


def _value(future: Future[Any]) -> Any:
    return future.value()
