"""The collectives of one process group in progress: which start at once, and which wait for others.

Those of the transport start at once, unless earlier calls may use the same memory. Programs of sends and receives run
one after another, in call order, on a thread of the group. Calls on a GPU's tensors have a queue of their own, and so
has everything that is called while one of them waits (``mlt.torch.staged_calls``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from mlt.torch.exchange import Exchange
from mlt.torch.reductions import Landing
from mlt.torch.staged_calls import StagedCalls
from mlt.torch.staging import Device, leaves
from mlt.torch.tags import RING, ROUNDS_PER_CALL
from mlt.torch.transfers import InProgress, TransferWork
from mlt.torch.work import CallQueue, MltWork

import torch
from mlt._gradients.loss import current_allowance

if TYPE_CHECKING:
    from mlt import Context, Operation


class GroupCalls:
    """The calls of the group ``name``. ``own``: this group rank. ``tag``: the first of ``tags.RING`` tags.

    ``publisher``: the queue that completes the futures of the transport's collectives.
    """

    def __init__(
        self, context: Context, ranks: tuple[int, ...], *, own: int, name: str, tag: int, publisher: CallQueue
    ) -> None:
        self._context = context
        self._ranks = ranks
        self._rank = own
        self._name = name
        self._tag = tag
        self._count = 0
        self._failure: Exception | None = None
        self._closed = False
        self._publisher = publisher
        self._queue = CallQueue(f"mlt-group-{name}")
        self._staged = StagedCalls(f"mlt-staging-{name}")
        self._native = InProgress()  # collectives of the transport

    @property
    def is_closed(self) -> bool:
        return self._closed

    def refuse_closed(self, call: str) -> None:
        """Raise RuntimeError after ``close``."""
        if self._closed:
            raise RuntimeError(f"mlt {call}: process group {self._name!r} was shut down on rank {self._rank}")

    def submit(
        self, name: str, program: Callable[[Exchange], None], result: Any, seconds: float, *, calls: int = 1
    ) -> MltWork:
        """Queue a collective's program of sends and receives; ``calls``: how many places of the ring it uses."""
        description, number = self._describe(name, calls)
        first = number % RING * ROUNDS_PER_CALL

        def run() -> None:
            # After a failed call, ranks may be at different rounds: a later call would receive the wrong data.
            if self._failure is not None:
                raise RuntimeError(
                    f"an earlier collective of this group failed ({self._failure}); destroy the process group and "
                    "make a new one under another context"
                )
            # This call may use what a collective of the transport has not written yet.
            self._native.finish()
            exchange = Exchange(self._context, self._ranks, tag=self._tag, timeout=seconds, first=first, ring=RING)
            try:
                program(exchange)
            except Exception as error:
                self._failure = error
                # If a post fails, the earlier posts of its round are still in progress.
                exchange.abandon()
                raise

        work = MltWork(description)
        self._queue.submit(work, run, result)
        return work

    def start(
        self,
        name: str,
        post: Callable[[Sequence[Landing]], list[Operation]],
        tensors: Sequence[torch.Tensor],
        *,
        also_uses: Sequence[torch.Tensor] = (),
        divisor: int = 1,
        result: Any = None,
        then: Callable[[], None] | None = None,
    ) -> TransferWork | MltWork:
        """Post collectives of the transport on these tensors, and divide the results by ``divisor``.

        Now, unless calls in the queue, or others in progress, may use the same memory: then after them. ``result``: the
        call's, lists of tensors, if ``tensors`` are not; ``then`` fills it once they are complete.
        """
        description, _ = self._describe(name, len(tensors))
        tensors, observe = list(tensors), current_allowance().observe
        if result is None:
            result = tensors

        def start() -> TransferWork:
            landings = [Landing(tensor) for tensor in tensors]

            def landed() -> None:
                for landing in landings:
                    landing.land(divisor)
                if then is not None:
                    then()

            work = TransferWork(post(landings), description, result, self._publisher, landed, observe)
            return self._native.add(work)

        if self._queue.is_idle and not self._native.uses([*leaves(result), *also_uses]):
            return start()

        def follow() -> None:
            self._native.finish()
            start().wait()

        queued = MltWork(description)
        self._queue.submit(queued, follow, result)
        return queued

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

        One call, and at once, if the tensors are in host memory and no earlier call waits for its turn. ``check``
        rejects tensors on a device; ``is_awaited``: as of ``StagedCalls.make``.
        """
        if device is None and self._staged.is_free():
            return start(calls[0][0])
        self.refuse_closed(name)
        description = f"mlt {name} (group {self._name!r}, rank {self._rank})"
        if device is None:
            return self._staged.submit(partial(start, calls[0][0]), result, description)
        check()
        return self._staged.make(device, start, calls, result, description, is_awaited=is_awaited)

    def close(self) -> None:
        """Complete the calls, and end the threads but the publisher's."""
        self._closed = True
        self._staged.close()
        self._queue.close()
        self._native.finish()

    def _describe(self, name: str, calls: int) -> tuple[str, int]:
        """Description and number of the next call."""
        self.refuse_closed(name)
        number = self._count
        self._count += max(calls, 1)
        return f"mlt {name} (call {number} of group {self._name!r}, rank {self._rank})", number
