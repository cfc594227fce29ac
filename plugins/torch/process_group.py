"""``torch.distributed`` backend "mlt": exact collectives over ``mlt.Context``, for tensors in host memory.

torch's store serves only the rendezvous of ``init_process_group`` and the distribution of the job's secret. All tensor
data goes over the transport, with loss bound 0. Gradients use the communication hook (``mlt.torch.hook``), which may
allow loss.

Collectives of one group run one after another, in call order, on one thread that sleeps between them. Each send or
receive has a thread until it completes, because its completion may depend on a later call.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import queue
import secrets
import threading
import weakref
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from mlt.torch import collectives
from mlt.torch.exchange import Exchange
from mlt.torch.work import MltWork, serve

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from mlt import Context

BACKEND: Final = "mlt"

# Tags of this plugin. Bit 62 separates them from the small tags of programs; bit 61 separates point-to-point from
# collectives; 36 bits are the group. The rest is the user's tag, or a position in the ring that the rounds reuse: the
# transport keeps the state of every tag, so a call cannot have a tag of its own.
_TAG_SPACE: Final = 1 << 62
_TAG_POINT_TO_POINT: Final = 1 << 61
_GROUP_SHIFT: Final = 25
_HASHED_GROUP: Final = 1 << 35
_ROUNDS_PER_CALL: Final = 4
_RING: Final = 64 * _ROUNDS_PER_CALL
_USER_TAGS: Final = 1 << 16
_SECRET_KEY: Final = "mlt/job_secret"

_COMBINE: Final[dict[Any, collectives.Combine]] = {
    dist.ReduceOp.SUM: torch.Tensor.add_,
    dist.ReduceOp.AVG: torch.Tensor.add_,
    dist.ReduceOp.PRODUCT: torch.Tensor.mul_,
    dist.ReduceOp.MIN: torch.minimum,
    dist.ReduceOp.MAX: torch.maximum,
}

_shared_context: Context | None = None
_group_names: dict[int, str] = {}


def use_context(context: Context | None) -> None:
    """Choose the context for ``init_process_group("mlt")``; the caller still closes it. None removes the choice.

    Others may post transfers on it, but must wait for them by operation: ``poll_cq`` would take a collective's
    completions.
    """
    global _shared_context
    _shared_context = context


def current_context() -> Context:
    """The context of the default process group "mlt" (or the one chosen with ``use_context``).

    Raises RuntimeError if neither exists.
    """
    if _shared_context is None:
        raise RuntimeError(
            'no mlt context exists: call torch.distributed.init_process_group("mlt") first, '
            "or mlt.torch.use_context(context)"
        )
    return _shared_context


def register_backend() -> None:
    """Register "mlt" with ``torch.distributed``; called by ``import mlt.torch``. Idempotent."""
    if BACKEND.upper() not in dist.Backend._plugins:
        dist.Backend.register_backend(BACKEND, _create, extended_api=True, devices=["cpu"])


class MltProcessGroup(dist.ProcessGroup):
    """A group of workers; created by ``torch.distributed``, not by programs.

    Offers the calls of DDP and plain data-parallel scripts: broadcast, allreduce (SUM, AVG, PRODUCT, MIN, MAX),
    allgather, reduce_scatter, barrier, send and recv. torch rejects other collectives with this backend's name.
    """

    def __init__(
        self,
        context: Context,
        *,
        rank: int,
        ranks: tuple[int, ...],
        group_id: str,
        timeout: timedelta,
        owns_context: bool = False,
    ) -> None:
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
        self._group_tag = _group_number(group_id) << _GROUP_SHIFT
        self._calls = 0
        self._failure: Exception | None = None
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._point_to_point: set[threading.Thread] = set()
        self._closed = False
        self._thread = threading.Thread(target=serve, args=(self._queue,), name=f"mlt-group-{group_id}", daemon=True)
        self._thread.start()
        # A thread inside torch that still runs at interpreter exit ends the process with std::terminate.
        atexit.register(_end_at_exit, weakref.ref(self))

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

    # -- collectives -------------------------------------------------------------------------------------------------

    def broadcast(self, tensors: Any, opts: Any = None, *_: Any) -> Any:
        """Copy each tensor from ``opts.rootRank`` (a group rank) to the others."""
        _check(tensors, "broadcast")
        root = opts.rootRank if opts is not None else 0

        def program(exchange: Exchange) -> None:
            for tensor in tensors:
                collectives.broadcast(exchange, tensor, rank=self._rank, size=self.size(), root=root)

        return self._submit("broadcast", program, tensors, opts, calls=len(tensors))

    def allreduce(self, tensors: Any, opts: Any = None, *_: Any) -> Any:
        """Combine each tensor over the group, in place; exact, and the same bits on every rank."""
        _check(tensors, "allreduce")
        combine, divide = self._reduction(opts, tensors, "allreduce")

        def program(exchange: Exchange) -> None:
            for tensor in tensors:
                collectives.all_reduce(exchange, tensor, rank=self._rank, size=self.size(), combine=combine)
                if divide:
                    tensor.div_(self.size())

        return self._submit("allreduce", program, tensors, opts, calls=len(tensors))

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> Any:
        return self.allreduce(tensors, opts)

    def allgather(self, output_lists: Any, inputs: Any, opts: Any = None, *_: Any) -> Any:
        """Copy group rank i's ``inputs[k]`` into ``output_lists[k][i]``."""
        for outputs, tensor in zip(output_lists, inputs, strict=True):
            _check([*outputs, tensor], "allgather")
            if len(outputs) != self.size():
                raise ValueError(f"mlt allgather: {len(outputs)} output tensors for a group of {self.size()}")

        def program(exchange: Exchange) -> None:
            for outputs, tensor in zip(output_lists, inputs, strict=True):
                collectives.all_gather(exchange, outputs, tensor, rank=self._rank)

        return self._submit("allgather", program, output_lists, opts, calls=len(inputs))

    def _allgather_base(self, output: Any, tensor: Any, opts: Any = None) -> Any:
        """Copy group rank i's tensor into the i-th share of ``output``."""
        _check([output, tensor], "allgather")
        if output.numel() != tensor.numel() * self.size() or not output.is_contiguous():
            raise ValueError(
                f"mlt allgather: the output must be contiguous and hold {tensor.numel()} x {self.size()} elements; "
                f"it holds {output.numel()}"
            )
        outputs = [share.view_as(tensor) for share in output.view(-1).chunk(self.size())]

        def program(exchange: Exchange) -> None:
            collectives.all_gather(exchange, outputs, tensor, rank=self._rank)

        return self._submit("allgather", program, output, opts)

    def reduce_scatter(self, outputs: Any, input_lists: Any, opts: Any = None, *_: Any) -> Any:
        """Set ``outputs[k]`` to the combination of every rank's ``input_lists[k][own rank]``."""
        for output, inputs in zip(outputs, input_lists, strict=True):
            _check([output, *inputs], "reduce_scatter")
            if len(inputs) != self.size():
                raise ValueError(f"mlt reduce_scatter: {len(inputs)} input tensors for a group of {self.size()}")
        combine, divide = self._reduction(opts, outputs, "reduce_scatter")

        def program(exchange: Exchange) -> None:
            for output, inputs in zip(outputs, input_lists, strict=True):
                collectives.reduce_scatter(exchange, output, inputs, rank=self._rank, combine=combine)
                if divide:
                    output.div_(self.size())

        return self._submit("reduce_scatter", program, outputs, opts, calls=len(outputs))

    def _reduce_scatter_base(self, output: Any, tensor: Any, opts: Any = None) -> Any:
        """Set ``output`` to the combination of every rank's own share of ``tensor``."""
        if tensor.numel() != output.numel() * self.size():
            raise ValueError(
                f"mlt reduce_scatter: the input must hold {output.numel()} x {self.size()} elements; "
                f"it holds {tensor.numel()}"
            )
        return self.reduce_scatter([output], [list(tensor.reshape(-1).chunk(self.size()))], opts)

    # torch 2.13 calls the single-tensor forms by these names, earlier versions by the names above.
    all_gather_single = _allgather_base  # type: ignore[assignment]
    reduce_scatter_single = _reduce_scatter_base  # type: ignore[assignment]

    def barrier(self, opts: Any = None) -> Any:
        """Complete when every rank of the group has called it."""
        token = torch.zeros(1, dtype=torch.uint8)

        def program(exchange: Exchange) -> None:
            collectives.all_reduce(exchange, token, rank=self._rank, size=self.size(), combine=torch.maximum)

        return self._submit("barrier", program, [], opts)

    # -- point to point ----------------------------------------------------------------------------------------------

    def send(self, tensors: Any, to: int, tag: int = 0) -> Any:
        """Send one tensor to group rank ``to``; the n-th send matches the n-th receive of the same tag there."""
        (tensor,) = tensors
        exchange = self._point_to_point_exchange("send", to, tag)
        _check([tensor], "send")
        exchange.send(tensor, to)
        return self._follow(f"send to rank {to}", exchange, tensors)

    def recv(self, tensors: Any, from_: int, tag: int = 0) -> Any:
        """Receive one tensor from group rank ``from_``."""
        (tensor,) = tensors
        exchange = self._point_to_point_exchange("recv", from_, tag)
        _check([tensor], "recv")
        exchange.recv(tensor, from_)
        return self._follow(f"recv from rank {from_}", exchange, tensors)

    # -- end ---------------------------------------------------------------------------------------------------------

    def shutdown(self) -> None:
        """Complete the posted collectives, end the helper threads, close the context that this group made."""
        if self._closed:
            return
        self._closed = True
        self._queue.put(None)
        self._thread.join()
        for thread in tuple(self._point_to_point):
            thread.join()
        if self._owns_context:
            if _shared_context is self._context:
                use_context(None)
            self._context.close()

    def end(self) -> None:
        """Shut down without waiting for calls in progress: closes the context first, which fails them."""
        if not self._closed:
            self._context.close()
            self.shutdown()

    # -- inside ------------------------------------------------------------------------------------------------------

    def _seconds(self, opts: Any) -> float:
        timeout = getattr(opts, "timeout", None)
        return (timeout if timeout is not None and timeout > timedelta(0) else self._timeout).total_seconds()

    def _reduction(self, opts: Any, tensors: Sequence[torch.Tensor], name: str) -> tuple[collectives.Combine, bool]:
        operation = opts.reduceOp if opts is not None else dist.ReduceOp.SUM
        for known, combine in _COMBINE.items():
            if operation == known:
                average = known == dist.ReduceOp.AVG
                if average and not all(tensor.is_floating_point() or tensor.is_complex() for tensor in tensors):
                    raise TypeError(f"mlt {name}: AVG needs floating-point tensors; use SUM for integers")
                return combine, average
        raise NotImplementedError(f"mlt {name}: reduce operation {operation} is not supported; use SUM, AVG, MIN, MAX")

    def _submit(self, name: str, program: Callable[[Exchange], None], result: Any, opts: Any, *, calls: int = 1) -> Any:
        """Queue a collective's program; returns the Work that completes with it."""
        self._refuse_closed(name)
        number = self._calls
        self._calls += max(calls, 1)
        first = number % _RING * _ROUNDS_PER_CALL
        seconds = self._seconds(opts)
        description = f"mlt {name} (call {number} of group {self._group_id!r}, rank {self._rank})"

        def run() -> None:
            # After a failed call, ranks may be at different rounds: a later call would receive the wrong data.
            if self._failure is not None:
                raise RuntimeError(
                    f"an earlier collective of this group failed ({self._failure}); destroy the process group and "
                    "make a new one under another context"
                )
            tag = _TAG_SPACE | self._group_tag
            exchange = Exchange(self._context, self._ranks, tag=tag, timeout=seconds, first=first, ring=_RING)
            try:
                program(exchange)
            except Exception as error:
                self._failure = error
                # If a post fails, the earlier posts of its round are still in progress.
                exchange.abandon()
                raise

        work = MltWork()
        self._queue.put(partial(work.complete, run, result, description))
        return work

    def _point_to_point_exchange(self, kind: str, peer: int, tag: int) -> Exchange:
        self._refuse_closed(kind)
        if not 0 <= peer < self.size() or peer == self._rank:
            raise ValueError(f"mlt {kind}: rank {peer} must be another rank of this group of {self.size()}")
        if not 0 <= tag < _USER_TAGS:
            raise ValueError(f"mlt {kind}: tag {tag} is outside [0, {_USER_TAGS})")
        wire_tag = _TAG_SPACE | _TAG_POINT_TO_POINT | self._group_tag | tag
        return Exchange(self._context, self._ranks, tag=wire_tag, timeout=self._timeout.total_seconds())

    def _follow(self, what: str, exchange: Exchange, result: Any) -> Any:
        work = MltWork()
        description = f"mlt {what} (group {self._group_id!r}, rank {self._rank})"

        def finish() -> None:
            work.complete(exchange.finish, result, description)
            self._point_to_point.discard(threading.current_thread())

        thread = threading.Thread(target=finish, name=f"mlt-{what}", daemon=True)
        self._point_to_point.add(thread)
        thread.start()
        return work

    def _refuse_closed(self, name: str) -> None:
        if self._closed:
            raise RuntimeError(f"mlt {name}: process group {self._group_id!r} was shut down on rank {self._rank}")


def _check(tensors: Sequence[torch.Tensor], name: str) -> None:
    for tensor in tensors:
        if tensor.device.type != "cpu" or tensor.layout != torch.strided:
            raise TypeError(
                f"mlt {name}: a {tensor.layout} tensor on {tensor.device} cannot be sent; "
                "the backend moves dense tensors in host memory"
            )


def _group_number(name: str) -> int:
    """The group's number in tags: torch's own where it numbers groups, else 35 bits of a hash; a collision is rejected.

    Ranks must agree on it without communication. Each rank knows only its own groups, so counting them is not possible.
    """
    if name.isascii() and name.isdigit() and int(name) < _HASHED_GROUP:
        return int(name)
    number = _HASHED_GROUP | int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") % _HASHED_GROUP
    other = _group_names.setdefault(number, name)
    if other != name:
        raise ValueError(f"mlt: process groups {other!r} and {name!r} would share their tags; rename one")
    return number


def _end_at_exit(reference: weakref.ref[MltProcessGroup]) -> None:
    group = reference()
    if group is not None:
        group.end()


def _secret_of(store: Any, rank: int) -> str | None:
    """The job's secret from torch's store, where rank 0 writes a new one; None if the environment has one.

    A group created again over the same store uses the previous group's secret: rank 0 does not replace it, because the
    other ranks read whatever is stored. Summation services cannot read the store, so a job with services needs a secret
    in the environment.
    """
    if store is None or int(os.environ.get("MLT_SERVICES") or 0) > 0:
        return None
    own = os.environ.get("MLT_JOB_SECRET") or os.environ.get("MLT_JOB_SECRET_FILE")
    if rank == 0:
        before = "" if own or not store.check([_SECRET_KEY]) else store.get(_SECRET_KEY).decode()
        made = "" if own else before or secrets.token_hex(32)
        store.set(_SECRET_KEY, made)
        return made or None
    # Rank 0 has its own secret, and this rank needs the same; the rendezvous reports a mismatch.
    return None if own else store.get(_SECRET_KEY).decode() or None


def _create(options: Any, _backend_options: object) -> MltProcessGroup:
    """Called by ``init_process_group`` and ``new_group``: the default group makes the context, other groups share
    it."""
    ranks = tuple(options.global_ranks_in_group) or tuple(range(options.group_size))
    owns_context = False
    if _shared_context is None:
        from mlt import Context

        # The number of services and rank 0's address come from the environment.
        secret = _secret_of(options.store, options.group_rank)
        use_context(Context(options.group_rank, options.group_size, secret=secret))
        owns_context = True
    context = current_context()
    if context.world_size < len(ranks):
        raise ValueError(
            f"the mlt context connects {context.world_size} workers, the process group wants {len(ranks)}: "
            "start both with the same WORLD_SIZE"
        )
    return MltProcessGroup(
        context,
        rank=options.group_rank,
        ranks=ranks,
        group_id=options.group_id,
        timeout=options.timeout,
        owns_context=owns_context,
    )
