"""``torch.distributed`` backend "mlt": exact collectives over ``mlt.Context``, for tensors in the memory of the host or
of a GPU.

torch's store serves only the rendezvous of ``init_process_group`` and the distribution of the job's secret
(``mlt.torch.contexts``). All tensor data goes over the transport, with loss bound 0 unless the group's options say
otherwise (``mlt.torch.group_options``). Gradients use the communication hook (``mlt.torch.hook``), which may allow
loss.

Every collective is one of the transport's. They, sends and receives need no thread: a waiting caller drives the
transport. A sum of sparse tensors is three of them, one after another (``mlt.torch.sparse``). ``mlt.torch.group_calls``
has the order in which calls start.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from mlt.torch.checks import check_count, check_dense, check_transfer
from mlt.torch.compilation import untraced_class
from mlt.torch.data_movement import DataMovement
from mlt.torch.group_options import Options, allowance_of
from mlt.torch.process_group_base import from_inputs, in_order, root_of
from mlt.torch.profiling import recorded
from mlt.torch.reductions import LOSSY, Landing, Terms, divisor_of, factor_of, in_lists, multiplied, reduction_of
from mlt.torch.sparse import sparse_all_reduce
from mlt.torch.staged_calls import in_host_memory, receive_staged
from mlt.torch.staging import leaves

import torch
import torch.distributed as dist
from mlt._gradients.loss import EXACT, Allowance, current_allowance

if TYPE_CHECKING:
    from mlt import Operation


@untraced_class
class MltProcessGroup(DataMovement):
    """A group of workers; created by ``torch.distributed``, not by programs.

    ``options``: the group's; without them it is exact.

    Offers every collective of c10d for dense tensors in host memory or on one GPU, exact: also the coalesced forms and
    those of functional collectives, and point to point with any source. Both generations of method names exist: torch
    2.13 calls the single-tensor forms by other names than earlier versions.
    """

    def __init__(self, *arguments: Any, options: Options | None = None, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._own_options = Options() if options is None else options
        self._allowed = allowance_of(self._own_options)

    @property
    def options(self) -> Options:
        """The group's ``pg_options``."""
        return self._own_options

    @in_order
    def allreduce(self, tensors: Any, opts: Any = None, *_: Any) -> Any:
        """Combine each tensor over the group, in place; exact, the same bits on every rank. Sparse: the sum only."""
        if any(tensor.layout == torch.sparse_coo for tensor in tensors):
            return self._sparse_all_reduce(tensors, opts)
        check_dense(tensors, "allreduce")
        terms = self._terms(opts, tensors, "allreduce", self._allowed)
        factor = factor_of(opts, "allreduce")

        def post(landings: Sequence[Landing]) -> list[Operation]:
            if factor != 1.0:
                for landing in landings:
                    landing.data.mul_(factor)
            return [
                self._context.post_all_reduce(
                    tensors, lossy_results=terms.are_results_lossy(tensors[0]), **terms.of(tensors[0])
                )
                for tensors in in_lists([landing.data for landing in landings])
            ]

        return self._calls.start(
            "allreduce", post, tensors, terms=terms, divisor=divisor_of(opts, tensors, self.size())
        )

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> Any:
        return self.allreduce(tensors, opts)

    @in_order
    def reduce(self, tensors: Any, opts: Any = None, *_: Any) -> Any:
        """Combine each tensor over the group, into that of ``opts.rootRank``; the others' are unchanged."""
        check_dense(tensors, "reduce")
        root = root_of(opts, self.size(), "reduce", "dst")
        terms = self._terms(opts, tensors, "reduce")
        factor = factor_of(opts, "reduce")

        def post(landings: Sequence[Landing]) -> list[Operation]:
            return [
                self._context.post_reduce(
                    multiplied(landing.data, factor),
                    landing.data if root == self._rank else None,
                    root=self._ranks[root],
                    **terms.of(landing.data),
                )
                for landing in landings
                if landing.data.numel()
            ]

        divisor = divisor_of(opts, tensors, self.size()) if root == self._rank else 1
        return self._calls.start("reduce", post, tensors, terms=terms, divisor=divisor)

    @from_inputs
    def reduce_scatter(self, outputs: Any, input_lists: Any, opts: Any = None, *_: Any) -> Any:
        """Set ``outputs[k]`` to the combination of every rank's ``input_lists[k][own rank]``."""
        for output, inputs in zip(outputs, input_lists, strict=True):
            check_dense([output, *inputs], "reduce_scatter")
            check_count(inputs, self.size(), "reduce_scatter", "input")
        if any(len({part.numel() for part in inputs}) > 1 for inputs in input_lists):
            return self._reduce_to_each(outputs, input_lists, opts)
        if any(output.numel() != inputs[0].numel() for output, inputs in zip(outputs, input_lists, strict=True)):
            raise ValueError("mlt reduce_scatter: each output must have as many elements as each of its inputs")
        return self._reduce_scatter(outputs, input_lists, opts)

    def _reduce_to_each(self, outputs: Any, input_lists: Any, opts: Any) -> Any:
        """The reduce-scatter of parts that differ in size: one reduction for each rank."""
        terms = self._terms(opts, outputs, "reduce_scatter", self._allowed)
        factor = factor_of(opts, "reduce_scatter")

        def post(landings: Sequence[Landing]) -> list[Operation]:
            return [
                self._context.post_reduce(
                    multiplied(Landing(part).data, factor),
                    landing.data if owner == self._rank else None,
                    root=self._ranks[owner],
                    **terms.of(landing.data),
                )
                for landing, inputs in zip(landings, input_lists, strict=True)
                for owner, part in enumerate(inputs)
                if part.numel()
            ]

        divisor = divisor_of(opts, outputs, self.size())
        return self._calls.start("reduce_scatter", post, outputs, terms=terms, divisor=divisor)

    def _reduce_scatter_base(self, output: Any, tensor: Any, opts: Any = None) -> Any:
        """Set ``output`` to the combination of every rank's own share of ``tensor``."""
        return self.reduce_scatter_tensor_coalesced([output], [tensor], opts)

    @from_inputs
    def reduce_scatter_tensor_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        for output, tensor in zip(outputs, inputs, strict=True):
            if tensor.numel() != output.numel() * self.size():
                raise ValueError(
                    f"mlt reduce_scatter: the input must hold {output.numel()} x {self.size()} elements; "
                    f"it holds {tensor.numel()}"
                )
        check_dense([*outputs, *inputs], "reduce_scatter")
        return self._reduce_scatter(outputs, inputs, opts)

    def _reduce_scatter(self, outputs: Sequence[torch.Tensor], inputs: Sequence[Any], opts: Any) -> Any:
        """Accepts inputs that are tensors, or lists of one tensor for each rank."""
        terms = self._terms(opts, outputs, "reduce_scatter", self._allowed)
        factor = factor_of(opts, "reduce_scatter")

        def given(tensor: Any) -> Any:
            if isinstance(tensor, torch.Tensor):
                return multiplied(Landing(tensor).data, factor)
            return [given(part) for part in tensor]

        def post(landings: Sequence[Landing]) -> list[Operation]:
            return [
                self._context.post_reduce_scatter(landing.data, given(tensor), **terms.of(landing.data))
                for landing, tensor in zip(landings, inputs, strict=True)
                if landing.data.numel()
            ]

        divisor = divisor_of(opts, outputs, self.size())
        uses = list(leaves(inputs))
        return self._calls.start("reduce_scatter", post, outputs, also_uses=uses, terms=terms, divisor=divisor)

    reduce_scatter_single = _reduce_scatter_base  # type: ignore[assignment]
    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced

    def barrier(self, opts: Any = None, *_: Any) -> Any:
        """Complete when every rank of the group has called it."""
        return self._stage(None, MltProcessGroup._barrier, [((), [], [])], [], (opts,), {})

    def _barrier(self, opts: Any) -> Any:
        seconds = self._seconds(opts)

        def post(_: Sequence[Landing]) -> list[Operation]:
            return [self._context.post_barrier(ranks=self._ranks, stream=self.stream, timeout=seconds)]

        return self._calls.start("barrier", post, [])

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """A barrier whose failure names the missing ranks: group rank 0 waits for each, the others for its answer.

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
        return recorded("send", lambda: self._transfers.send(tensor, to, tag, self._timeout.total_seconds()))

    def recv(self, tensors: Any, from_: int, tag: int = 0) -> Any:
        """Receive one tensor from group rank ``from_``."""

        def post(tensor: torch.Tensor) -> Any:
            self._check_transfer("recv", tensor, tag, from_)
            return self._transfers.recv(tensor, from_, tag, self._timeout.total_seconds())

        return recorded("recv", lambda: receive_staged(tensors, post))

    def recv_anysource(self, tensors: Any, tag: int = 0) -> Any:
        """Receive one tensor from the first group rank that sends; the work's ``source_rank`` names it."""

        def post(tensor: torch.Tensor) -> Any:
            self._check_transfer("recv", tensor, tag, None)
            return self._transfers.recv_any(tensor, tag, self._timeout.total_seconds())

        return recorded("recv", lambda: receive_staged(tensors, post))

    # -- inside ------------------------------------------------------------------------------------------------------

    def _terms(self, opts: Any, tensors: Sequence[Any], name: str, allowed: Allowance = EXACT) -> Terms:
        """Terms of the reduction that ``opts`` requests; it may lose what the caller of this allows now, else
        ``allowed``."""
        reduction = reduction_of(opts, tensors, name)
        may_lose = reduction in LOSSY and any(tensor.is_floating_point() or tensor.is_complex() for tensor in tensors)
        allowed = current_allowance(allowed) if may_lose else EXACT
        return Terms(reduction, self._ranks, self.stream, self._seconds(opts), allowed)

    def _sparse_all_reduce(self, tensors: Sequence[torch.Tensor], opts: Any) -> Any:
        if any(tensor.layout != torch.sparse_coo or tensor.device.type != "cpu" for tensor in tensors):
            raise TypeError("mlt allreduce: sparse tensors need layout sparse_coo, in host memory, all of one call")
        if opts is not None and opts.reduceOp != dist.ReduceOp.SUM:
            raise ValueError(f"mlt allreduce: sparse tensors are summed only, not {opts.reduceOp}; use SUM")

        how = self._how(opts)

        def program() -> None:
            for tensor in tensors:
                summed = sparse_all_reduce(
                    self._context,
                    tensor,
                    rank=self._rank,
                    how=how,
                    started=lambda operation: self._calls.adopt(operation, "mlt allreduce"),
                )
                tensor.copy_(summed.total)

        return self._calls.submit("allreduce", program, tensors, calls=len(tensors))

    def _check_transfer(self, kind: str, tensor: torch.Tensor, tag: int, peer: int | None) -> None:
        self._calls.refuse_closed(kind)
        check_transfer(kind, tensor, tag, peer, own=self._rank, size=self.size())
