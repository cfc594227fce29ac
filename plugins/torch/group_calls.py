"""The collectives of one process group in progress: which start at once, and which wait for others.

Those of the transport start at once, unless earlier calls may use the same memory: then after them, on a thread of the
group. So run programs of several collectives, one of which needs the results of another. Calls on a GPU's tensors have
a queue of their own, and so has everything that is called while one of them waits (``mlt.torch.staged_calls``).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from mlt.torch import recorder
from mlt.torch.profiling import name_of
from mlt.torch.reductions import Landing, Terms
from mlt.torch.staged_calls import StagedCalls, has_its_turn
from mlt.torch.staging import Device
from mlt.torch.transfers import InProgress, TransferWork
from mlt.torch.work import CallQueue, MltWork, failure_of

import torch
from mlt.errors import MltError, PeerFailedError

if TYPE_CHECKING:
    from mlt import Operation

_PAUSE_SECONDS: Final = 0.005


class CallName:
    """``mlt broadcast of float32[10] (call 1 of group '0', rank 0)``: put together only if an error needs it.

    The transport's own texts have types and sizes, but no shapes, and parts of complex numbers.
    """

    __slots__ = ("_group", "_name", "_number", "_rank", "_tensors")

    def __init__(self, name: str, number: int, group: str, rank: int, tensors: Sequence[torch.Tensor]) -> None:
        self._name, self._number, self._group, self._rank = name, number, group, rank
        self._tensors = tensors

    def __str__(self) -> str:
        of = ""
        if self._tensors:
            first = self._tensors[0]
            many = f"{len(self._tensors)} tensors, the first " if len(self._tensors) > 1 else ""
            of = f" of {many}{str(first.dtype).removeprefix('torch.')}{list(first.shape)}"
        return f"mlt {self._name}{of} (call {self._number} of group {self._group!r}, rank {self._rank})"


class GroupCalls:
    """The calls of the group ``name``. ``own``: this group rank.

    ``publisher``: the queue that completes the futures of the transport's collectives. ``recorded_as``: the group's
    name in the flight recorder.
    """

    def __init__(self, *, own: int, name: str, publisher: CallQueue, recorded_as: str | None = None) -> None:
        self._rank = own
        self._name = name
        self._recorded_as = recorded_as or name
        self._count = 0
        self._closed = False
        self._failure = ""  # why calls fail that have not started yet
        self._publisher = publisher
        self._queue = CallQueue(f"mlt-group-{name}")
        self._staged = StagedCalls(f"mlt-staging-{name}")
        self._native = InProgress()  # collectives of the transport
        self._adopted: list[tuple[Operation, str]] = []
        self._adopting = threading.Lock()

    @property
    def is_closed(self) -> bool:
        return self._closed

    def refuse_more(self) -> bool:
        """Reject later calls; False if they are rejected already. Those that wait for their turn are made."""
        was_closed, self._closed = self._closed, True
        return not was_closed

    def refuse_closed(self, call: str) -> None:
        """Raise RuntimeError after ``refuse_more``."""
        if self._closed and not has_its_turn():
            raise RuntimeError(f"mlt {call}: process group {self._name!r} was shut down on rank {self._rank}")

    def submit(self, name: str, program: Callable[[], None], result: Any, *, calls: int = 1) -> MltWork:
        """Queue a program that makes collectives of the transport and waits for them."""
        description, number = self._next(name, calls, result or ())
        work = MltWork(description, entry=recorder.begin(name_of(name), self._recorded_as, number, result))

        def run() -> None:
            self._native.finish()  # the program may use what an earlier collective has not written yet
            program()

        self._queue.submit(work, run, result)
        return work

    def start(
        self,
        name: str,
        post: Callable[[Sequence[Landing]], list[Operation]],
        tensors: Sequence[torch.Tensor],
        *,
        also_uses: Sequence[torch.Tensor] = (),
        terms: Terms | None = None,
        divisor: int = 1,
        result: Any = None,
        calls: int | None = None,
    ) -> TransferWork | MltWork:
        """Post collectives of the transport on these tensors, and divide the results by ``divisor``. ``terms``: of a
        reduction.

        Now, unless calls in the queue, or others in progress, may use the same memory: then after them. ``result``: the
        call's, if it is not ``tensors``; ``calls``: how many calls of the program these are, if not one for each.
        """
        description, number = self._next(name, len(tensors) if calls is None else calls, tensors or also_uses)
        entry = recorder.begin(name_of(name), self._recorded_as, number, tensors)
        tensors, observe = list(tensors), None if terms is None else terms.observe
        if result is None:
            result = tensors

        def start() -> TransferWork:
            if self._failure:
                raise RuntimeError(f"{description}: rank {self._rank} {self._failure}")
            landings = [Landing(tensor) for tensor in tensors]

            def landed() -> None:
                for landing in landings:
                    landing.land(divisor)

            error = None
            try:
                operations = post(landings)
            except PeerFailedError as failure:  # of a rank that is gone: an error of the call, like one in progress
                operations, error = [], failure_of(description, failure)
            except Exception as failure:
                if entry is not None:
                    entry.end(failure)
                raise
            work = TransferWork(
                operations, description, result, self._publisher, landed, observe, also_uses, error, entry
            )
            return self._native.add(work)

        if self._queue.is_idle and not self._native.uses([result, also_uses]):
            return start()

        def follow() -> None:
            self._native.finish()
            start().wait()

        queued = MltWork(description)
        self._queue.submit(queued, follow, result)
        return queued

    @property
    def is_free(self) -> bool:
        """Whether a call on tensors in host memory may be made at once: no earlier call waits for its turn."""
        return self._staged.is_free()

    def stage(
        self,
        name: str,
        device: Device | None,
        start: Callable[[Sequence[Any]], Any],
        calls: Sequence[tuple[tuple[Any, ...], Any, Any]],
        result: Any,
        *,
        check: Callable[[], None],
        is_awaited: bool,
    ) -> Any:
        """Make calls with ``start``, each with arguments, the tensors that it reads, and those that it writes.

        One call if the tensors are in host memory; it may be made without this if ``is_free``. ``check`` rejects
        tensors on a device; ``is_awaited``: as of ``StagedCalls.make``.
        """
        self.refuse_closed(name)
        description = f"mlt {name} (group {self._name!r}, rank {self._rank})"
        if device is None:
            return self._staged.submit(partial(start, calls[0][0]), result, description)
        check()
        return self._staged.make(device, start, calls, result, description, is_awaited=is_awaited)

    def adopt(self, operation: Operation, name: str) -> None:
        """Count an operation that was not started here among the calls in progress: ``name``, a hook's bucket."""
        with self._adopting:
            self._adopted = [one for one in self._adopted if not one[0].done()]
            self._adopted.append((operation, name))
        if self._failure:
            self._cancel_adopted()

    def unfinished(self, left: Callable[[], float]) -> str:
        """Wait for the calls until ``left()`` is 0 s; the one that has not ended then, empty if all have."""
        found = self._staged.unfinished(left) or self._queue.unfinished(left) or self._native.unfinished(left)
        for operation, name in () if found else tuple(self._adopted):
            while not operation.done():
                if left() <= 0:
                    return name
                time.sleep(_PAUSE_SECONDS)
        return found

    def fail(self, reason: str) -> None:
        """Cancel the calls in progress, and those that wait for their turn. ``reason``: what this rank did."""
        self._failure = reason
        self._native.fail(f"it {reason}")
        self._cancel_adopted()

    def _cancel_adopted(self) -> None:
        for operation, _ in tuple(self._adopted):
            with suppress(MltError):
                operation.cancel(reason=f"it {self._failure}")

    def close(self) -> None:
        """Complete the calls, and end the threads but the publisher's."""
        self._closed = True
        self._staged.close()
        self._queue.close()
        self._native.finish()

    def _next(self, name: str, calls: int, tensors: Sequence[torch.Tensor]) -> tuple[CallName, int]:
        """Name of the next call, and its number, from 1."""
        self.refuse_closed(name)
        number = self._count
        self._count += max(calls, 1)
        return CallName(name, number + 1, self._name, self._rank, tensors), number + 1
