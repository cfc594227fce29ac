"""``OpenBucket``: one gradient bucket of the hook, from its start to its average or failure."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from mlt.torch.rotation import restore, rotate
from mlt.torch.work import failure_of

import torch
from mlt.errors import PeerFailedError

if TYPE_CHECKING:
    from mlt.torch.recorder import Entry
    from mlt.torch.sparse import SparseSum


class Record(Protocol):
    """Takes what a bucket cost, for the statistics of its step."""

    def __call__(self, *, pushed_bytes: int, missing_bytes: int, repairs: int) -> None: ...


class OpenBucket:
    """Completes ``future``, which DDP waits for, with the bucket's average or an error that names the bucket.

    ``entry``: the call in the flight recorder. ``record``: called once the average is there. A ``Call`` of a
    ``CallQueue``: a call that fails is the failure of the bucket.
    """

    def __init__(
        self, name: str, future: torch.futures.Future[torch.Tensor], entry: Entry | None, record: Record
    ) -> None:
        self.name = name
        self._future = future
        self._entry = entry
        self._record = record

    def start(
        self,
        average: Callable[[torch.Tensor], Any],
        data: torch.Tensor,
        seed: int | None,
        land: Callable[[], None],
    ) -> None:
        """Start averaging ``data`` in place, rotated by ``seed`` if that is not None; then call ``land``, which
        completes the future.

        ``average`` starts it and returns its handle. An error of a peer that is gone is the bucket's; others are
        raised.
        """
        if seed is not None:
            rotate(data, seed)

        def finished() -> None:
            if seed is not None:
                restore(data, seed)
            land()

        try:
            handle = average(data)
        except Exception as error:
            self._end(error)
            if not isinstance(error, PeerFailedError):
                raise
            self.fail(error)
            return
        handle.add_done_callback(partial(self._finish, handle, finished))
        handle.report_if_slow()

    def set_result(self, average: torch.Tensor) -> None:
        self._future.set_result(average)

    def set_sparse_result(self, average: SparseSum) -> None:
        self._end(None)
        self._record(pushed_bytes=average.bytes, missing_bytes=0, repairs=average.repairs)
        self.set_result(average.total)

    def fail(self, error: Exception) -> None:
        failure = error if self.name in str(error) else failure_of(self.name, error)
        self._end(failure)
        # (torch's annotation gives the result's type here; the method takes any exception.)
        self._future.set_exception(failure)  # type: ignore[arg-type]

    def run(self, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as error:
            self.fail(error)

    def publish(self, result: Any) -> None:
        """No result to publish: the call that averages completes the future."""

    def _finish(self, handle: Any, land: Callable[[], None], *_: object) -> None:
        """Completion callback, on a thread of the library: sets the future's result, with ``land``, or exception."""
        try:
            done = handle.wait(timeout=0)
        except Exception as error:
            self.fail(error)
            return
        self._end(None)
        self._record(pushed_bytes=done.bytes, missing_bytes=done.missing_bytes, repairs=done.repairs)
        try:
            land()
        except Exception as error:  # of the rotation, or the copy back to a GPU: nothing else completes the future
            self.fail(error)

    def _end(self, error: Exception | None) -> None:
        if self._entry is not None:
            self._entry.end(error)
