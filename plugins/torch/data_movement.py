"""The collectives that move data and combine nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mlt.torch import collectives
from mlt.torch.checks import check_count, check_dense, parts_by_splits
from mlt.torch.exchange import Exchange, as_bytes
from mlt.torch.process_group_base import ProcessGroupBase, from_inputs, in_order, root_of
from mlt.torch.reductions import LISTED_BYTES, Landing, in_lists

import torch

if TYPE_CHECKING:
    from mlt import Operation


class DataMovement(ProcessGroupBase):
    """Broadcast, the gathers, scatter and the all-to-alls of a process group."""

    @in_order
    def broadcast(self, tensors: Any, opts: Any = None, *_: Any) -> Any:
        """Copy each tensor from ``opts.rootRank`` (a group rank) to the others."""
        check_dense(tensors, "broadcast")
        root, seconds = self._ranks[root_of(opts)], self._seconds(opts)

        def post(landings: Sequence[Landing]) -> list[Operation]:
            return [
                self._context.post_broadcast(tensors, root=root, ranks=self._ranks, stream=self.stream, timeout=seconds)
                for tensors in in_lists([as_bytes(landing.data) for landing in landings])
            ]

        return self._calls.start("broadcast", post, tensors)

    @from_inputs
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

    @from_inputs
    def allgather_into_tensor_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        check_dense([*outputs, *inputs], "allgather")
        for output, tensor in zip(outputs, inputs, strict=True):
            if output.numel() != tensor.numel() * self.size() or not output.is_contiguous():
                raise ValueError(
                    f"mlt allgather: the output must be contiguous and hold {tensor.numel()} x {self.size()} elements; "
                    f"it holds {output.numel()}"
                )
        return self._gather_into(outputs, inputs, opts)

    @from_inputs
    def gather(self, output_lists: Any, inputs: Any, opts: Any = None, *_: Any) -> Any:
        """Copy group rank i's ``inputs[0]`` into ``output_lists[0][i]`` of ``opts.rootRank``."""
        (tensor,) = inputs
        root = root_of(opts)
        outputs = output_lists[0] if root == self._rank else []
        check_dense([*outputs, tensor], "gather")
        if root == self._rank:
            check_count(outputs, self.size(), "gather", "output")

        def program(exchange: Exchange) -> None:
            collectives.gather(exchange, outputs, tensor, rank=self._rank, root=root)

        return self._calls.submit("gather", program, output_lists, self._seconds(opts))

    @from_inputs
    def scatter(self, outputs: Any, input_lists: Any, opts: Any = None, *_: Any) -> Any:
        """Copy ``input_lists[0][i]`` of ``opts.rootRank`` into group rank i's ``outputs[0]``."""
        (output,) = outputs
        root = root_of(opts)
        inputs = input_lists[0] if root == self._rank else []
        check_dense([*inputs, output], "scatter")
        if root == self._rank:
            check_count(inputs, self.size(), "scatter", "input")

        def program(exchange: Exchange) -> None:
            collectives.scatter(exchange, output, inputs, rank=self._rank, root=root)

        return self._calls.submit("scatter", program, outputs, self._seconds(opts))

    @from_inputs
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

    @from_inputs
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
    all_to_all_single = alltoall_base  # type: ignore[assignment]


def _are_small_and_equal(outputs: Sequence[torch.Tensor]) -> bool:
    """Whether a list of outputs is best gathered in one piece; the same on every rank."""
    first = outputs[0]
    return first.numel() * first.element_size() <= LISTED_BYTES and all(
        one.numel() == first.numel() and one.dtype == first.dtype for one in outputs
    )
