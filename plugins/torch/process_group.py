"""``torch.distributed`` backend "mlt": exact collectives over ``mlt.Context``, for tensors in the memory of the host or
of a GPU.

torch's store serves only the rendezvous of ``init_process_group`` and the distribution of the job's secret
(``mlt.torch.contexts``). All tensor data goes over the transport, with loss bound 0. Gradients use the communication
hook (``mlt.torch.hook``), which may allow loss.

``all_reduce``, ``reduce``, ``reduce_scatter``, ``broadcast`` and ``barrier`` are the transport's own collectives; they,
sends and receives need no thread: whoever waits for one drives the transport. The others are rounds of sends and
receives (``mlt.torch.collectives``). ``mlt.torch.group_calls`` has the order in which calls start.
"""

from __future__ import annotations

import atexit
import weakref
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import wraps
from typing import TYPE_CHECKING, Any, Final

from mlt.torch import collectives, contexts
from mlt.torch.checks import check_configured, check_count, check_dense, check_transfer, parts_by_splits
from mlt.torch.exchange import Exchange, as_bytes
from mlt.torch.group_calls import GroupCalls
from mlt.torch.monitored_barrier import MonitoredBarrier
from mlt.torch.reductions import LISTED_BYTES, LOSSY, Landing, divisor_of, factor_of, in_lists, multiplied, reduction_of
from mlt.torch.staged_calls import in_host_memory, receive_staged
from mlt.torch.staging import Device, device_of, leaves, pieces_of
from mlt.torch.tags import GroupTags
from mlt.torch.transfers import Transfers
from mlt.torch.work import CallQueue

import torch
import torch.distributed as dist
from mlt._gradients.loss import EXACT, current_allowance
from mlt.errors import ConfigError, RendezvousError
from mlt.job import ending
from torch.distributed.distributed_c10d import _world

if TYPE_CHECKING:
    from mlt import Context, Operation

BACKEND: Final = "mlt"


def register_backend() -> None:
    """Register "mlt" with ``torch.distributed``; called by ``import mlt.torch``. Idempotent."""
    if BACKEND.upper() not in dist.Backend._plugins:
        dist.Backend.register_backend(BACKEND, _create, extended_api=True, devices=["cpu", "cuda"])


def _in_order(method: Callable[..., Any]) -> Callable[..., Any]:
    """For a method whose first argument holds the tensors that it reads and writes: staged if they are on a device."""

    @wraps(method)
    def call(group: MltProcessGroup, tensors: Any, *rest: Any, **named: Any) -> Any:
        device = device_of(tensors, method.__name__)
        parts = pieces_of(tensors) if device is not None else [(tensors, tensors, tensors)]
        calls = [((part,), read, written) for part, read, written in parts]
        return group._stage(device, method, calls, tensors, rest, named)

    return call


def _are_small_and_equal(outputs: Sequence[torch.Tensor]) -> bool:
    """Whether a list of outputs is best gathered in one piece; the same on every rank."""
    first = outputs[0]
    return first.numel() * first.element_size() <= LISTED_BYTES and all(
        one.numel() == first.numel() and one.dtype == first.dtype for one in outputs
    )


def _from_inputs(method: Callable[..., Any]) -> Callable[..., Any]:
    """For a method whose first argument holds the tensors that it writes, and the second those that it reads."""

    @wraps(method)
    def call(group: MltProcessGroup, outputs: Any, inputs: Any, *rest: Any, **named: Any) -> Any:
        device = device_of([*leaves(outputs), *leaves(inputs)], method.__name__)
        return group._stage(device, method, [((outputs, inputs), inputs, outputs)], outputs, rest, named)

    return call


class MltProcessGroup(dist.ProcessGroup):
    """A group of workers; created by ``torch.distributed``, not by programs.

    Offers every collective of c10d for dense tensors in host memory or on one GPU, exact: also the coalesced forms and
    those of functional collectives, and point to point with any source. Both generations of method names exist: torch
    2.13 calls the single-tensor forms by other names than earlier versions.
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
        self._tags = GroupTags(group_id)
        self._publisher = CallQueue(f"mlt-futures-{group_id}")
        self._calls = GroupCalls(
            context, ranks, own=rank, name=group_id, tag=self._tags.collectives, publisher=self._publisher
        )
        self._transfers = Transfers(
            context, ranks, own=rank, tag=self._tags.point_to_point, name=group_id, publisher=self._publisher
        )
        self._monitored_barrier = MonitoredBarrier(context, ranks, own=rank, tag=self._tags.barriers)
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

    # torch 2.14 asks these of the backend of any group, in ``batch_isend_irecv`` for one.
    def _get_backend(self, device: torch.device) -> Any:
        return self

    @property
    def supports_coalescing(self) -> bool:
        return False

    @property
    def supports_time_estimate(self) -> bool:
        return False

    # -- collectives -------------------------------------------------------------------------------------------------

    @_in_order
    def broadcast(self, tensors: Any, opts: Any = None, *_: Any) -> Any:
        """Copy each tensor from ``opts.rootRank`` (a group rank) to the others."""
        check_dense(tensors, "broadcast")
        root, seconds = self._ranks[_root(opts)], self._seconds(opts)

        def post(landings: Sequence[Landing]) -> list[Operation]:
            return [
                self._context.post_broadcast(tensors, root=root, ranks=self._ranks, stream=self.stream, timeout=seconds)
                for tensors in in_lists([as_bytes(landing.data) for landing in landings])
            ]

        return self._calls.start("broadcast", post, tensors)

    @_in_order
    def allreduce(self, tensors: Any, opts: Any = None, *_: Any) -> Any:
        """Combine each tensor over the group, in place; exact, the same bits on every rank. Sparse: the sum only."""
        if any(tensor.layout == torch.sparse_coo for tensor in tensors):
            return self._sparse_all_reduce(tensors, opts)
        check_dense(tensors, "allreduce")
        options = self._options(opts, reduction_of(opts, tensors, "allreduce"))
        factor = factor_of(opts, "allreduce")

        def post(landings: Sequence[Landing]) -> list[Operation]:
            if factor != 1.0:
                for landing in landings:
                    landing.data.mul_(factor)
            return [
                self._context.post_all_reduce(tensors, **options(tensors[0]))
                for tensors in in_lists([landing.data for landing in landings])
            ]

        return self._calls.start("allreduce", post, tensors, divisor=divisor_of(opts, tensors, self.size()))

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> Any:
        return self.allreduce(tensors, opts)

    @_in_order
    def reduce(self, tensors: Any, opts: Any = None, *_: Any) -> Any:
        """Combine each tensor over the group, into that of ``opts.rootRank``; the others' are unchanged."""
        check_dense(tensors, "reduce")
        root = _root(opts)
        options = self._options(opts, reduction_of(opts, tensors, "reduce"))
        factor = factor_of(opts, "reduce")

        def post(landings: Sequence[Landing]) -> list[Operation]:
            return [
                self._context.post_reduce(
                    multiplied(landing.data, factor),
                    landing.data if root == self._rank else None,
                    root=self._ranks[root],
                    **options(landing.data),
                )
                for landing in landings
                if landing.data.numel()
            ]

        divisor = divisor_of(opts, tensors, self.size()) if root == self._rank else 1
        return self._calls.start("reduce", post, tensors, divisor=divisor)

    @_from_inputs
    def allgather(self, output_lists: Any, inputs: Any, opts: Any = None, *_: Any) -> Any:
        """Copy group rank i's ``inputs[k]`` into ``output_lists[k][i]``."""
        for outputs, tensor in zip(output_lists, inputs, strict=True):
            check_dense([*outputs, tensor], "allgather")
            check_count(outputs, self.size(), "allgather", "output")
        if all(map(_are_small_and_equal, output_lists)):
            return self._gather_small(output_lists, inputs, opts)

        def program(exchange: Exchange) -> None:
            for outputs, tensor in zip(output_lists, inputs, strict=True):
                collectives.all_gather(exchange, outputs, tensor, rank=self._rank)

        return self._calls.submit("allgather", program, output_lists, self._seconds(opts), calls=len(inputs))

    def _gather_small(self, output_lists: Any, inputs: Any, opts: Any) -> Any:
        """The all-gather of tensors whose copies cost less than sends and receives of each."""
        shares = [
            torch.empty((self.size(), outputs[0].numel()), dtype=outputs[0].dtype, device=outputs[0].device)
            for outputs in output_lists
        ]

        def spread() -> None:
            with torch.no_grad():
                for outputs, rows in zip(output_lists, shares, strict=True):
                    for output, row in zip(outputs, rows, strict=True):
                        output.copy_(row.view(output.shape))

        return self._gather_into(shares, inputs, opts, result=output_lists, then=spread)

    def _gather_into(
        self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], opts: Any, **options: Any
    ) -> Any:
        seconds = self._seconds(opts)

        def post(landings: Sequence[Landing]) -> list[Operation]:
            return [
                self._context.post_all_gather(
                    as_bytes(landing.data),
                    as_bytes(Landing(tensor).data),
                    ranks=self._ranks,
                    stream=self.stream,
                    timeout=seconds,
                )
                for landing, tensor in zip(landings, inputs, strict=True)
                if landing.data.numel()
            ]

        return self._calls.start("allgather", post, outputs, also_uses=inputs, **options)

    def allgather_coalesced(self, output_lists: Any, inputs: Any, opts: Any = None) -> Any:
        """Copy group rank i's ``inputs[k]`` into ``output_lists[i][k]``."""
        check_count(output_lists, self.size(), "allgather", "output")
        return self.allgather([list(outputs) for outputs in zip(*output_lists, strict=True)], inputs, opts)

    def _allgather_base(self, output: Any, tensor: Any, opts: Any = None) -> Any:
        """Copy group rank i's tensor into the i-th share of ``output``."""
        return self.allgather_into_tensor_coalesced([output], [tensor], opts)

    @_from_inputs
    def allgather_into_tensor_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        check_dense([*outputs, *inputs], "allgather")
        for output, tensor in zip(outputs, inputs, strict=True):
            if output.numel() != tensor.numel() * self.size() or not output.is_contiguous():
                raise ValueError(
                    f"mlt allgather: the output must be contiguous and hold {tensor.numel()} x {self.size()} elements; "
                    f"it holds {output.numel()}"
                )
        return self._gather_into(outputs, inputs, opts)

    @_from_inputs
    def reduce_scatter(self, outputs: Any, input_lists: Any, opts: Any = None, *_: Any) -> Any:
        """Set ``outputs[k]`` to the combination of every rank's ``input_lists[k][own rank]``."""
        for output, inputs in zip(outputs, input_lists, strict=True):
            check_dense([output, *inputs], "reduce_scatter")
            check_count(inputs, self.size(), "reduce_scatter", "input")
        if any(len({part.numel() for part in inputs}) > 1 for inputs in input_lists):
            return self._reduce_to_each(outputs, input_lists, opts)
        joined = [torch.cat([part.detach().reshape(-1) for part in inputs]) for inputs in input_lists]
        return self.reduce_scatter_tensor_coalesced(outputs, joined, opts)

    def _reduce_to_each(self, outputs: Any, input_lists: Any, opts: Any) -> Any:
        """The reduce-scatter of parts that differ in size: one reduction for each rank."""
        options = self._options(opts, reduction_of(opts, outputs, "reduce_scatter"))
        factor = factor_of(opts, "reduce_scatter")

        def post(landings: Sequence[Landing]) -> list[Operation]:
            return [
                self._context.post_reduce(
                    multiplied(Landing(part).data, factor),
                    landing.data if owner == self._rank else None,
                    root=self._ranks[owner],
                    **options(landing.data),
                )
                for landing, inputs in zip(landings, input_lists, strict=True)
                for owner, part in enumerate(inputs)
                if part.numel()
            ]

        return self._calls.start("reduce_scatter", post, outputs, divisor=divisor_of(opts, outputs, self.size()))

    def _reduce_scatter_base(self, output: Any, tensor: Any, opts: Any = None) -> Any:
        """Set ``output`` to the combination of every rank's own share of ``tensor``."""
        return self.reduce_scatter_tensor_coalesced([output], [tensor], opts)

    @_from_inputs
    def reduce_scatter_tensor_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        for output, tensor in zip(outputs, inputs, strict=True):
            if tensor.numel() != output.numel() * self.size():
                raise ValueError(
                    f"mlt reduce_scatter: the input must hold {output.numel()} x {self.size()} elements; "
                    f"it holds {tensor.numel()}"
                )
        check_dense([*outputs, *inputs], "reduce_scatter")
        options = self._options(opts, reduction_of(opts, outputs, "reduce_scatter"))
        factor = factor_of(opts, "reduce_scatter")

        def post(landings: Sequence[Landing]) -> list[Operation]:
            return [
                self._context.post_reduce_scatter(
                    landing.data, multiplied(Landing(tensor).data, factor), **options(landing.data)
                )
                for landing, tensor in zip(landings, inputs, strict=True)
                if landing.data.numel()
            ]

        divisor = divisor_of(opts, outputs, self.size())
        return self._calls.start("reduce_scatter", post, outputs, also_uses=inputs, divisor=divisor)

    @_from_inputs
    def gather(self, output_lists: Any, inputs: Any, opts: Any = None, *_: Any) -> Any:
        """Copy group rank i's ``inputs[0]`` into ``output_lists[0][i]`` of ``opts.rootRank``."""
        (tensor,) = inputs
        root = _root(opts)
        outputs = output_lists[0] if root == self._rank else []
        check_dense([*outputs, tensor], "gather")
        if root == self._rank:
            check_count(outputs, self.size(), "gather", "output")

        def program(exchange: Exchange) -> None:
            collectives.gather(exchange, outputs, tensor, rank=self._rank, root=root)

        return self._calls.submit("gather", program, output_lists, self._seconds(opts))

    @_from_inputs
    def scatter(self, outputs: Any, input_lists: Any, opts: Any = None, *_: Any) -> Any:
        """Copy ``input_lists[0][i]`` of ``opts.rootRank`` into group rank i's ``outputs[0]``."""
        (output,) = outputs
        root = _root(opts)
        inputs = input_lists[0] if root == self._rank else []
        check_dense([*inputs, output], "scatter")
        if root == self._rank:
            check_count(inputs, self.size(), "scatter", "input")

        def program(exchange: Exchange) -> None:
            collectives.scatter(exchange, output, inputs, rank=self._rank, root=root)

        return self._calls.submit("scatter", program, outputs, self._seconds(opts))

    @_from_inputs
    def alltoall(self, outputs: Any, inputs: Any, opts: Any = None, *_: Any) -> Any:
        """Copy ``inputs[i]`` into this rank's output tensor of group rank i; sizes may differ from pair to pair."""
        check_dense([*outputs, *inputs], "alltoall")
        check_count(outputs, self.size(), "alltoall", "output")
        check_count(inputs, self.size(), "alltoall", "input")

        def program(exchange: Exchange) -> None:
            collectives.all_to_all(exchange, outputs, inputs, rank=self._rank)

        return self._calls.submit("alltoall", program, outputs, self._seconds(opts))

    def alltoall_base(
        self, output: Any, tensor: Any, output_splits: Any, input_splits: Any, opts: Any = None, *_: Any
    ) -> Any:
        """Exchange the parts of ``tensor``, cut along dimension 0 by the splits (empty: equal parts)."""
        return self._all_to_all_parts([output], [tensor], output_splits, input_splits, opts)

    @_from_inputs
    def _all_to_all_parts(
        self, outputs: Any, inputs: Any, output_splits: Any, input_splits: Any, opts: Any = None
    ) -> Any:
        check_dense([*outputs, *inputs], "alltoall")
        (output,), (tensor,) = outputs, inputs
        output_splits, input_splits = (
            [part.numel() * whole.element_size() for part in parts_by_splits(whole, given, self.size(), which)]
            for which, whole, given in (("output", output, output_splits), ("input", tensor, input_splits))
        )
        seconds = self._seconds(opts)

        def post(landings: Sequence[Landing]) -> list[Operation]:
            return [
                self._context.post_all_to_all(
                    as_bytes(landing.data),
                    as_bytes(Landing(tensor).data),
                    output_splits=output_splits,
                    input_splits=input_splits,
                    ranks=self._ranks,
                    stream=self.stream,
                    timeout=seconds,
                )
                for landing in landings
            ]

        return self._calls.start("alltoall", post, outputs, also_uses=inputs)

    all_gather_single = _allgather_base  # type: ignore[assignment]
    all_gather_single_coalesced = allgather_into_tensor_coalesced
    reduce_scatter_single = _reduce_scatter_base  # type: ignore[assignment]
    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced
    all_to_all_single = alltoall_base  # type: ignore[assignment]

    def barrier(self, opts: Any = None, *_: Any) -> Any:
        """Complete when every rank of the group has called it."""
        return self._stage(None, MltProcessGroup._barrier, [((), [], [])], [], (opts,), {})

    def _barrier(self, opts: Any) -> Any:
        seconds = self._seconds(opts)

        def post(_: Sequence[Landing]) -> list[Operation]:
            return [self._context.post_barrier(ranks=self._ranks, stream=self.stream, timeout=seconds)]

        return self._calls.start("barrier", post, [])

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """A barrier whose failure names who did not come: group rank 0 waits for each, the others for its answer.

        Raises RuntimeError after ``timeout`` (default: the group's): on rank 0 with the first missing rank, or all of
        them (``wait_all_ranks``). Collectives may follow, another monitored barrier may not: the ranks no longer agree
        on their number. (``dist.monitored_barrier`` itself accepts gloo only.)
        """
        self._calls.refuse_closed("monitored_barrier")
        limit = timeout if timeout is not None else self._timeout
        self._monitored_barrier.wait(limit, name_all=wait_all_ranks)

    # -- point to point ----------------------------------------------------------------------------------------------

    def send(self, tensors: Any, to: int, tag: int = 0) -> Any:
        """Send one tensor to group rank ``to``; the n-th send matches the n-th receive of the same tag there."""
        (tensor,) = in_host_memory(tensors, "send")
        self._check_transfer("send", tensor, tag, to)
        return self._transfers.send(tensor, to, tag, self._timeout.total_seconds())

    def recv(self, tensors: Any, from_: int, tag: int = 0) -> Any:
        """Receive one tensor from group rank ``from_``."""

        def post(tensor: torch.Tensor) -> Any:
            self._check_transfer("recv", tensor, tag, from_)
            return self._transfers.recv(tensor, from_, tag, self._timeout.total_seconds())

        return receive_staged(tensors, post)

    def recv_anysource(self, tensors: Any, tag: int = 0) -> Any:
        """Receive one tensor from the first group rank that sends; the work's ``source_rank`` names it."""

        def post(tensor: torch.Tensor) -> Any:
            self._check_transfer("recv", tensor, tag, None)
            return self._transfers.recv_any(tensor, tag, self._timeout.total_seconds())

        return receive_staged(tensors, post)

    # -- end ---------------------------------------------------------------------------------------------------------

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the limit of later calls that bring none of their own."""
        self._timeout = timeout

    def shutdown(self) -> None:
        """Complete the posted calls, end the helper threads, close the context that this group made."""
        if self._calls.is_closed:
            return
        self._calls.close()
        self._transfers.finish()
        self._publisher.close()
        if self._owns_context:
            contexts.forget_context(self._context)
            self._context.close()

    def abort(self, *, failure: str = "") -> None:
        """Shut down without waiting for calls in progress: closes the context first, which fails them.

        ``failure``: as of ``Context.close``.
        """
        if not self._calls.is_closed:
            self._context.close(failure=failure)
            self.shutdown()

    # -- inside ------------------------------------------------------------------------------------------------------

    def _seconds(self, opts: Any) -> float:
        timeout = getattr(opts, "timeout", None)
        return (timeout if timeout is not None and timeout > timedelta(0) else self._timeout).total_seconds()

    def _options(self, opts: Any, reduction: str) -> Callable[[torch.Tensor], dict[str, Any]]:
        """Arguments of the transport's reduction of a tensor, made when it is posted; it may lose what the caller of
        this allows now."""
        seconds, allowed = self._seconds(opts), current_allowance() if reduction in LOSSY else EXACT

        def options(tensor: torch.Tensor) -> dict[str, Any]:
            from mlt import Reduction  # loads the native library, which importing torch must not

            found = {"op": Reduction[reduction], "ranks": self._ranks, "stream": self.stream, "timeout": seconds}
            if tensor.is_floating_point():
                found |= {"loss_bound": allowed.bound, "layer": allowed.layer, "layers": allowed.layers}
            return found

        return options

    def _sparse_all_reduce(self, tensors: Sequence[torch.Tensor], opts: Any) -> Any:
        if any(tensor.layout != torch.sparse_coo or tensor.device.type != "cpu" for tensor in tensors):
            raise TypeError("mlt allreduce: sparse tensors need layout sparse_coo, in host memory, all of one call")
        if opts is not None and opts.reduceOp != dist.ReduceOp.SUM:
            raise ValueError(f"mlt allreduce: sparse tensors are summed only, not {opts.reduceOp}; use SUM")

        def program(exchange: Exchange) -> None:
            for tensor in tensors:
                collectives.sparse_all_reduce(exchange, tensor, rank=self._rank, size=self.size())

        return self._calls.submit("allreduce", program, tensors, self._seconds(opts), calls=len(tensors))

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

        def start(arguments: Sequence[Any]) -> Any:
            return method(self, *arguments, *rest, **named)

        def check() -> None:
            backends = _world.pg_backend_config.get(self, "")
            for tensor in leaves([calls[0][1], calls[0][2]]):
                check_configured(backends, BACKEND, tensor.device, name)

        # torch says in the options whether its caller waits for the end.
        is_awaited = not all(getattr(opts, "asyncOp", True) for opts in (*rest, *named.values()))
        return self._calls.stage(name, device, start, calls, result, check=check, is_awaited=is_awaited)

    def _check_transfer(self, kind: str, tensor: torch.Tensor, tag: int, peer: int | None) -> None:
        self._calls.refuse_closed(kind)
        check_transfer(kind, tensor, tag, peer, own=self._rank, size=self.size())


def mlt_group(group: dist.ProcessGroup, user: str) -> MltProcessGroup:
    """torch's process group as this backend's; raises TypeError, which names its ``user``, for any other backend's."""
    found = group if isinstance(group, MltProcessGroup) else group._get_backend(torch.device("cpu"))
    if not isinstance(found, MltProcessGroup):
        raise TypeError(
            f"{user}: the process group's backend is {found.name()}, and only sums of mlt can lose anything: give it a "
            f'group of backend "{BACKEND}", or leave it out'
        )
    return found


def _root(opts: Any) -> int:
    return int(opts.rootRank) if opts is not None else 0


def _end_at_exit(reference: weakref.ref[MltProcessGroup]) -> None:
    group = reference()
    if group is not None:
        group.abort(failure=ending.unhandled())


def _create(options: Any, _backend_options: object) -> MltProcessGroup:
    """Called by ``init_process_group`` and ``new_group``."""
    try:
        membership = contexts.join(options)
    except (ConfigError, RendezvousError) as error:
        raise error.with_traceback(None) from None  # as of Context()
    return MltProcessGroup(
        membership.context,
        rank=options.group_rank,
        ranks=membership.ranks,
        group_id=options.group_id,
        timeout=options.timeout,
        owns_context=membership.owns_context,
    )
