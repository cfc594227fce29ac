"""The parts that all calls of a process group share: identity, timeouts, handling of a device's tensors, the end."""

from __future__ import annotations

import atexit
import logging
import sys
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import wraps
from typing import TYPE_CHECKING, Any, Final

from mlt.torch import contexts
from mlt.torch.checks import check_configured, check_root
from mlt.torch.compilation import untraced_class
from mlt.torch.group_calls import GroupCalls
from mlt.torch.group_end import Grace
from mlt.torch.monitored_barrier import MonitoredBarrier
from mlt.torch.profiling import recorded
from mlt.torch.staging import Device, device_of, leaves, pieces_of
from mlt.torch.tags import GroupTags
from mlt.torch.transfers import Transfers
from mlt.torch.work import CallQueue

import torch
import torch.distributed as dist
from mlt.errors import MltError
from mlt.job import ending
from torch.distributed.distributed_c10d import _world

if TYPE_CHECKING:
    from mlt import Context, Operation

logger = logging.getLogger("mlt")
BACKEND: Final = "mlt"


def in_order(method: Callable[..., Any]) -> Callable[..., Any]:
    """For a method whose first argument holds the tensors that it reads and writes: staged if they are on a device."""

    @wraps(method)
    def call(group: ProcessGroupBase, tensors: Any, *rest: Any, **named: Any) -> Any:
        device = device_of(tensors, method.__name__)
        parts = pieces_of(tensors) if device is not None else [(tensors, tensors, tensors)]
        calls = [((part,), read, written) for part, read, written in parts]
        return group._stage(device, method, calls, tensors, rest, named)

    return call


def from_inputs(method: Callable[..., Any]) -> Callable[..., Any]:
    """For a method whose first argument holds the tensors that it writes, and the second those that it reads."""

    @wraps(method)
    def call(group: ProcessGroupBase, outputs: Any, inputs: Any, *rest: Any, **named: Any) -> Any:
        device = device_of([*leaves(outputs), *leaves(inputs)], method.__name__)
        return group._stage(device, method, [((outputs, inputs), inputs, outputs)], outputs, rest, named)

    return call


@untraced_class
class ProcessGroupBase(dist.ProcessGroup):
    """A process group without collectives."""

    def __init__(
        self,
        context: Context,
        *,
        rank: int,
        ranks: tuple[int, ...],
        group_id: str,
        timeout: timedelta,
        owns_context: bool = False,
        recorded_as: str | None = None,
    ) -> None:
        """``recorded_as``: the flight recorder's name of the group, ``group_id`` by default."""
        # pybind's constructor for Python subclasses takes (rank, size); the stubs only know the one with a store.
        super().__init__(rank, len(ranks))  # type: ignore[call-arg, arg-type]
        self._context = context
        self._rank = rank
        self._ranks = ranks
        self._group_id = group_id
        self._group_name = group_id
        self._group_description = "undefined"
        self._timeout = timeout
        self._owns_context = owns_context
        self._tags = GroupTags(group_id)
        self._streams = {self._tags.stream}
        self._publisher = CallQueue(f"mlt-futures-{group_id}")
        self._calls = GroupCalls(
            own=rank, name=group_id, publisher=self._publisher, recorded_as=recorded_as or group_id
        )
        self._transfers = Transfers(
            context,
            ranks,
            own=rank,
            tag=self._tags.point_to_point,
            name=group_id,
            publisher=self._publisher,
            recorded_as=recorded_as or group_id,
        )
        self._monitored_barrier = MonitoredBarrier(
            context,
            ranks,
            own=rank,
            tag=self._tags.barriers,
            started=lambda operation: self._calls.adopt(operation, "monitored_barrier"),
        )
        # A thread inside torch that still runs at interpreter exit ends the process with std::terminate.
        atexit.register(_end_at_exit, weakref.ref(self))

    @property
    def context(self) -> Context:
        """The context whose workers the group consists of."""
        return self._context

    @property
    def ranks(self) -> tuple[int, ...]:
        """Rank in the context by group rank."""
        return self._ranks

    @property
    def stream(self) -> int:
        """Number of this group among the context's groups: a stream of its native collectives, above 0."""
        return self._tags.stream

    # -- identity, queried by torch ----------------------------------------------------------------------------------

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return len(self._ranks)

    def getRank(self) -> int:
        return self._rank

    def getSize(self) -> int:
        return len(self._ranks)

    def name(self) -> str:
        return BACKEND

    def getBackendName(self) -> str:
        return BACKEND

    def setGroupName(self, name: str) -> None:
        self._group_name = name

    def getGroupName(self) -> str:
        return self._group_name

    @property
    def group_name(self) -> Any:
        return self._group_name

    def setGroupDesc(self, description: str) -> None:
        self._group_description = description

    @property
    def group_desc(self) -> str:
        return self._group_description

    @property
    def supports_splitting(self) -> bool:
        return False

    # torch's own has the devices of backends in C++ only.
    @property
    def _device_types(self) -> list[torch.device]:
        """The devices whose tensors the group takes; torch asks for checkpoints and objects."""
        # (torch.cuda.is_available() would initialise the driver, and children could use it no more.)
        here = ["cpu", *(["cuda"] if torch.version.cuda else [])]
        backends = _world.pg_backend_config.get(self, "").split(",")
        configured = [one for one in here if f"{one}:{BACKEND}" in backends]
        return [torch.device(one) for one in configured or here]

    # torch 2.14 asks these of the backend of any group, in ``batch_isend_irecv`` for one.
    def _get_backend(self, device: torch.device) -> Any:
        return self

    @property
    def supports_coalescing(self) -> bool:
        return False

    @property
    def supports_time_estimate(self) -> bool:
        return False

    # torch's own would follow a null pointer, or do nothing: they are for backends in C++.
    def split_group(self, *_: Any, **__: Any) -> Any:
        """Always raises NotImplementedError. (``dist.split_group`` itself accepts only groups bound to an accelerator,
        and torch binds none whose backend is in Python.)"""
        raise NotImplementedError(
            "mlt split_group: this group cannot be split; make a group with torch.distributed.new_group(ranks), or all "
            "parts at once with torch.distributed.new_subgroups_by_enumeration: either is made without communication "
            "over the connections of the default group"
        )

    def merge_remote_group(self, *_: Any, **__: Any) -> Any:
        """Always raises NotImplementedError."""
        raise NotImplementedError(
            "mlt merge_remote_group: a running job takes no more ranks; start a new one with all ranks, or use torchft "
            "(mlt.torch.torchft)"
        )

    # -- end ---------------------------------------------------------------------------------------------------------

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the limit of later calls that bring none of their own."""
        self._timeout = timeout

    def shutdown(self) -> None:
        """Wait for the posted calls, end the helper threads, close the context that this group made.

        The wait is short if no data arrives (``mlt.torch.group_end``): the calls left then fail at every rank.
        """
        if not self._calls.refuse_more():
            return
        grace = Grace(self._context)
        unfinished = self._calls.unfinished(grace.left) or self._transfers.unfinished(grace.left)
        if unfinished:
            grace.end_early()
            unfinished = unfinished.removeprefix("mlt ")
            logger.warning(
                "rank %d: this process group was destroyed while %s was in progress, which fails at every rank: wait "
                "for each call before destroy_process_group()",
                self._context.rank,
                unfinished,
            )
            ended = ending.reason_of(*sys.exc_info()[:2])
            self._fail_calls(
                f"{ended and ended + ', and '}destroyed its process group while {unfinished} was in progress"
            )
        self._end()

    def abort(self) -> None:
        """Fail the calls in progress at every rank, and shut down without waiting for them.

        Later calls of this group fail at the other ranks too. Other groups continue, unless this one made the context
        that they share.
        """
        if self._calls.refuse_more():
            self._fail_calls(f"aborted process group {self._group_id!r}")
            self._end()

    def adopt(self, operation: Operation, name: str, stream: int | None) -> None:
        """Count an operation on this group's ranks among its calls in progress. ``stream``: of a collective."""
        if stream is not None:
            self._streams.add(stream)
        self._calls.adopt(operation, name)

    def _fail_calls(self, reason: str) -> None:
        """``reason``: what this rank did, for the errors of all."""
        self._calls.fail(reason)
        if self._owns_context:
            contexts.forget_context(self._context)
            self._context.close_after(sys.exc_info()[1], reason)
        else:
            self._transfers.fail(reason)
            for stream in self._streams:  # others may wait for calls that this rank has not made
                with suppress(MltError):
                    self._context.end_group(f"it {reason}", ranks=self._ranks, stream=stream)

    def _end(self) -> None:
        self._calls.close()
        self._transfers.finish()
        self._publisher.close()
        if self._owns_context:
            contexts.forget_context(self._context)
            self._context.close()

    def end_at_exit(self) -> None:
        """The same at the interpreter's end: the other ranks learn why this process ends."""
        if not self._calls.is_closed:
            self._context.close_at_exit()
            self.shutdown()

    # -- inside ------------------------------------------------------------------------------------------------------

    def _seconds(self, opts: Any) -> float:
        timeout = getattr(opts, "timeout", None)
        return (timeout if timeout is not None and timeout > timedelta(0) else self._timeout).total_seconds()

    def _how(self, opts: Any) -> dict[str, Any]:
        """Arguments of each of the transport's collectives."""
        return {"ranks": self._ranks, "stream": self.stream, "timeout": self._seconds(opts)}

    def _stage(
        self,
        device: Device | None,
        method: Callable[..., Any],
        calls: Sequence[tuple[tuple[Any, ...], Any, Any]],
        result: Any,
        rest: tuple[Any, ...],
        named: dict[str, Any],
    ) -> Any:
        """Make calls of ``method``, each with arguments, the tensors that it reads, and those that it writes."""
        name = method.__name__.strip("_")
        if device is None and self._calls.is_free:
            return recorded(name, lambda: method(self, *calls[0][0], *rest, **named))

        def start(arguments: Sequence[Any]) -> Any:
            return method(self, *arguments, *rest, **named)

        def check() -> None:
            backends = _world.pg_backend_config.get(self, "")
            for tensor in leaves([calls[0][1], calls[0][2]]):
                check_configured(backends, BACKEND, tensor.device, name)

        # torch says in the options whether its caller waits for the end.
        is_awaited = not all(getattr(opts, "asyncOp", True) for opts in (*rest, *named.values()))
        return recorded(
            name,
            lambda: self._calls.stage(name, device, start, calls, result, check=check, is_awaited=is_awaited),
        )


def root_of(opts: Any, size: int, call: str, argument: str = "src") -> int:
    """The group rank that a call names as its root, else 0. ``argument``: its name in torch.distributed. Raises
    ValueError for a rank outside of the group."""
    root = int(opts.rootRank) if opts is not None else 0
    check_root(root, size, call, argument)
    return root


def _end_at_exit(reference: weakref.ref[ProcessGroupBase]) -> None:
    group = reference()
    if group is not None:
        group.end_at_exit()
