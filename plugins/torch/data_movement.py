"""The collectives that move data and combine nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mlt.torch.checks import check_count, check_dense, check_equal, parts_by_splits
from mlt.torch.compilation import untraced_class
from mlt.torch.process_group_base import ProcessGroupBase, from_inputs, in_order, root_of
from mlt.torch.reductions import Landing, as_elements, in_lists

if TYPE_CHECKING:
    from mlt import Operation


@untraced_class
class DataMovement(ProcessGroupBase):
    """Broadcast, the gathers, scatter and the all-to-alls of a process group."""

    @in_order
    def broadcast(self, tensors: Any, opts: Any = None, *_: Any) -> Any:
        """Copy each tensor from ``opts.rootRank`` (a group rank) to the others."""
        check_dense(tensors, "broadcast")
        root, how = self._ranks[root_of(opts, self.size(), "broadcast")], self._how(opts)

        def post(landings: Sequence[Landing]) -> list[Operation]:
            return [
                self._context.post_broadcast(tensors, root=root, **how)
                for tensors in in_lists([as_elements(landing.data) for landing in landings])
            ]

        return self._calls.start("broadcast", post, tensors)

    @from_inputs
    def allgather(self, output_lists: Any, inputs: Any, opts: Any = None, *_: Any) -> Any:
        """Copy group rank i's ``inputs[k]`` into ``output_lists[k][i]``; sizes may differ from rank to rank."""
        for outputs, tensor in zip(output_lists, inputs, strict=True):
            check_dense([*outputs, tensor], "allgather")
            check_count(outputs, self.size(), "allgather", "output")
        how = self._how(opts)

        def post(landings: Sequence[Landing]) -> list[Operation]:
            operations = []
            for k, tensor in enumerate(inputs):
                outputs = [as_elements(one.data) for one in landings[k * self.size() : (k + 1) * self.size()]]
                given = as_elements(Landing(tensor).data)
                if len({one.numel() for one in outputs}) > 1:
                    operations.append(self._context.post_all_to_all(outputs, [given] * self.size(), **how))
                elif outputs[0].numel():
                    operations.append(self._context.post_all_gather(outputs, given, **how))
            return operations

        flat = [output for outputs in output_lists for output in outputs]
        return self._calls.start("allgather", post, flat, also_uses=inputs, result=output_lists, calls=len(inputs))

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
        how = self._how(opts)

        def post(landings: Sequence[Landing]) -> list[Operation]:
            return [
                self._context.post_all_gather(as_elements(landing.data), as_elements(Landing(tensor).data), **how)
                for landing, tensor in zip(landings, inputs, strict=True)
                if landing.data.numel()
            ]

        return self._calls.start("allgather", post, outputs, also_uses=inputs)

    @from_inputs
    def gather(self, output_lists: Any, inputs: Any, opts: Any = None, *_: Any) -> Any:
        """Copy group rank i's ``inputs[0]`` into ``output_lists[0][i]`` of ``opts.rootRank``, all of one size."""
        (tensor,) = inputs
        root = root_of(opts, self.size(), "gather", "dst")
        outputs = output_lists[0] if root == self._rank else []
        check_dense([*outputs, tensor], "gather")
        if root == self._rank:
            check_count(outputs, self.size(), "gather", "output")
            check_equal(outputs, tensor, "gather", "output")
        how = self._how(opts)

        def post(landings: Sequence[Landing]) -> list[Operation]:
            if not tensor.numel():
                return []
            parts = [as_elements(one.data) for one in landings] or None
            return [self._context.post_gather(as_elements(Landing(tensor).data), parts, root=self._ranks[root], **how)]

        return self._calls.start("gather", post, outputs, also_uses=inputs, result=output_lists)

    @from_inputs
    def scatter(self, outputs: Any, input_lists: Any, opts: Any = None, *_: Any) -> Any:
        """Copy ``input_lists[0][i]`` of ``opts.rootRank`` into group rank i's ``outputs[0]``, all of one size."""
        (output,) = outputs
        root = root_of(opts, self.size(), "scatter")
        inputs = input_lists[0] if root == self._rank else []
        check_dense([*inputs, output], "scatter")
        if root == self._rank:
            check_count(inputs, self.size(), "scatter", "input")
            check_equal(inputs, output, "scatter", "input")
        how = self._how(opts)

        def post(landings: Sequence[Landing]) -> list[Operation]:
            parts = [as_elements(Landing(one).data) for one in inputs] or None
            return [
                self._context.post_scatter(as_elements(landing.data), parts, root=self._ranks[root], **how)
                for landing in landings
                if landing.data.numel()
            ]

        return self._calls.start("scatter", post, outputs, also_uses=inputs)

    @from_inputs
    def alltoall(self, outputs: Any, inputs: Any, opts: Any = None, *_: Any) -> Any:
        """Copy ``inputs[i]`` into this rank's output tensor of group rank i; sizes may differ from pair to pair."""
        check_dense([*outputs, *inputs], "alltoall")
        check_count(outputs, self.size(), "alltoall", "output")
        check_count(inputs, self.size(), "alltoall", "input")
        how = self._how(opts)

        def post(landings: Sequence[Landing]) -> list[Operation]:
            parts = [as_elements(Landing(tensor).data) for tensor in inputs]
            return [self._context.post_all_to_all([as_elements(one.data) for one in landings], parts, **how)]

        return self._calls.start("alltoall", post, outputs, also_uses=inputs, calls=1)

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
        output_parts, input_parts = (
            [part.numel() for part in parts_by_splits(whole, given, self.size(), which)]
            for which, whole, given in (("output", output, output_splits), ("input", tensor, input_splits))
        )
        how = self._how(opts)

        def post(landings: Sequence[Landing]) -> list[Operation]:
            (landing,) = landings
            received, sent = as_elements(landing.data), as_elements(Landing(tensor).data)
            return [
                self._context.post_all_to_all(
                    received,
                    sent,
                    # Complex numbers are two elements, those of types that the transport lacks several bytes.
                    output_splits=[part * received.numel() // max(output.numel(), 1) for part in output_parts],
                    input_splits=[part * sent.numel() // max(tensor.numel(), 1) for part in input_parts],
                    **how,
                )
            ]

        return self._calls.start("alltoall", post, outputs, also_uses=inputs)

    all_gather_single = _allgather_base  # type: ignore[assignment]
    all_gather_single_coalesced = allgather_into_tensor_coalesced
    all_to_all_single = alltoall_base  # type: ignore[assignment]
