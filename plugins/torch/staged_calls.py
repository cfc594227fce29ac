"""Calls on tensors of a device, made on their mirrors in host memory (``mlt.torch.staging``), each in its turn."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, Final

from mlt.torch.compilation import untraced_class
from mlt.torch.staging import Device, Staged, device_of, leaves
from mlt.torch.work import CallQueue, MltWork, future_pair, publish

import torch
import torch.distributed as dist

# Set while a call of ``StagedCalls`` starts another of its group: that one has had its turn.
_has_its_turn: Final[contextvars.ContextVar[bool]] = contextvars.ContextVar("mlt_has_its_turn", default=False)


@untraced_class
class StagedWork(MltWork):
    """A call on tensors of a device. ``wait`` returns once the copies back have started; its stream waits for them."""

    def __init__(self, description: str, device: Device, tensors: Sequence[torch.Tensor]) -> None:
        super().__init__(description, device.future(tensors))
        self._device = device
        self.arrived: Any = None
        self._unpublished: list[Any] = []

    def run_here(self, call: Callable[[], None], result: Any) -> None:
        """Make the call on this thread, which would wait at once: no other has to wake. The future waits for a user."""
        self.run(call)
        self._unpublished.append(result)

    def get_future(self) -> Any:
        while self._unpublished:
            self.publish(self._unpublished.pop())
        return super().get_future()

    def is_completed(self) -> bool:
        """Whether the result may be used without a wait, on any stream: torch's callers rely on it."""
        return super().is_completed() and (self._error is not None or self._device.is_reached(self.arrived))

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        super().wait(timeout)
        self._device.wait(self.arrived)
        return True

    def publish(self, result: Any) -> None:
        if self._error is not None:
            super().publish(result)
        else:
            self._device.complete(lambda: super(StagedWork, self).publish(result), self.arrived)


@untraced_class
class StagedReceive(dist.Work):
    """A receive into a mirror; the first thread that waits, or finds it complete, starts the copy to the device."""

    def __init__(self, work: Any, staged: Staged, tensor: torch.Tensor) -> None:
        super().__init__()
        self._work = work
        self._staged = staged
        self._tensor = tensor
        self._lock = threading.Lock()
        self._arrived: Any = None

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        self._staged.device.wait(self._land(timeout))
        return True

    def is_completed(self) -> bool:
        if not self._work.is_completed():
            return False
        try:
            return self._staged.device.is_reached(self._land())
        except RuntimeError:
            return True  # it failed, and wait says how

    def get_future(self) -> Any:
        source, future = future_pair(self._staged.device.future([self._tensor]))

        def follow(received: Any) -> None:
            try:
                received.value()
                arrived = self._land()
            except Exception as error:
                publish(source, None, error)
            else:
                self._staged.device.complete(lambda: publish(source, [self._tensor], None), arrived)

        self._work.get_future().add_done_callback(follow)
        return future

    def is_success(self) -> bool:
        return bool(self._work.is_success())

    def exception(self) -> Any:
        return self._work.exception()

    def result(self) -> list[torch.Tensor]:
        self.wait()
        return [self._tensor]

    def source_rank(self) -> int:
        return int(self._work.source_rank())

    _source_rank = source_rank

    def _land(self, timeout: timedelta = timedelta(0)) -> Any:
        """Wait for the receive, and start the copy to the device unless it was; returns its event."""
        self._work.wait(timeout)
        with self._lock:
            if self._arrived is None:
                self._arrived = self._staged.back([self._tensor])
            return self._arrived


class StagedCalls:
    """The calls of one group that need a turn: those on a device's tensors, and what is called while they wait.

    Every rank must make its calls in the same order, and a call on a device's tensors starts only once their data is in
    host memory. So they run one after another, on a thread of their own.
    """

    def __init__(self, name: str) -> None:
        self._queue = CallQueue(name)
        self._pending: list[tuple[set[int], MltWork]] = []  # memory and work of those in the queue

    def is_free(self) -> bool:
        """Whether a call on tensors in host memory may start at once."""
        return has_its_turn() or self._queue.is_idle

    def submit(self, start: Callable[[], Any], result: Any, description: str) -> MltWork:
        """Make a call on tensors in host memory in its turn. ``start`` returns its Work."""
        work = MltWork(description)
        context = contextvars.copy_context()
        self._queue.submit(work, lambda: context.run(_in_turn, start).wait(), result)
        return work

    def make(
        self,
        device: Device,
        start: Callable[[Sequence[Any]], Any],
        calls: Sequence[tuple[Sequence[Any], Any, Any]],
        result: Any,
        description: str,
        *,
        is_awaited: bool,
    ) -> StagedWork:
        """Make calls together, each with its arguments, the tensors that it reads, and those that it writes.

        ``start`` makes one with the mirrors of its arguments, and returns its Work. ``is_awaited``: the caller waits
        for the end at once, so that the calls may be made on its own thread.
        """
        tensors = list(leaves([(read, written) for _, read, written in calls]))
        memory = {tensor.untyped_storage().data_ptr() for tensor in tensors}
        self._pending = [one for one in self._pending if not one[1].is_completed()]
        staged = Staged(device, device.mark(tensors[0]))
        work = StagedWork(description, device, tensors)
        # Copies to the host start now, unless an earlier call has yet to copy back to the same memory.
        is_unused = all(memory.isdisjoint(used) for used, _ in self._pending)
        ready = [staged.to_host(read) for _, read, _ in calls] if is_unused else []
        context = contextvars.copy_context()

        def run() -> None:
            started = []
            for event, call in zip(ready or [staged.to_host(read) for _, read, _ in calls], calls, strict=True):
                device.synchronize(event)
                started.append(context.run(_in_turn, partial(start, staged.mirror(call[0]))))
            for one, (_, _, written) in zip(started, calls, strict=True):
                one.wait()
                work.arrived = staged.back(written)

        if is_awaited and self._queue.is_idle:
            work.run_here(run, result)
        else:
            self._pending.append((memory, work))
            self._queue.submit(work, run, result)
        return work

    def unfinished(self, left: Callable[[], float]) -> str:
        """The same as that of ``CallQueue``."""
        return self._queue.unfinished(left)

    def close(self) -> None:
        """Finish the calls, and end the threads."""
        self._queue.close()


def has_its_turn() -> bool:
    """Whether this thread makes a call of ``StagedCalls``."""
    return _has_its_turn.get()


def in_host_memory(tensors: Sequence[torch.Tensor], call: str) -> list[torch.Tensor]:
    """These tensors, or mirrors that hold their data, for which the calling thread is blocked until it is there."""
    device = device_of(tensors, call)
    if device is None:
        return list(tensors)
    staged = Staged(device, device.mark(tensors[0]))
    device.synchronize(staged.to_host(tensors))
    return [staged.mirror(tensor) for tensor in tensors]


def receive_staged(tensors: Sequence[torch.Tensor], post: Callable[[torch.Tensor], Any]) -> Any:
    """Post the receive of one tensor, into its mirror if it is on a device."""
    (tensor,) = tensors
    device = device_of(tensors, "recv")
    if device is None:
        return post(tensor)
    staged = Staged(device, device.mark(tensor))
    return StagedReceive(post(staged.mirror(tensor)), staged, tensor)


def _in_turn(start: Callable[[], Any]) -> Any:
    _has_its_turn.set(True)
    return start()
