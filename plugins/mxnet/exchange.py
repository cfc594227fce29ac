"""``GradientExchange``: averages the gradients of one step over all ranks, in place.

Gradients travel in layers of consecutive parameters. The back layers start first, each as soon as MXNet's engine
reports its gradients, which it may do late: it runs many operators as one. The transport prefers the front layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mlt.mxnet.arrays import Arrays, check_dense, spec_of
from mlt.mxnet.compression import Compression, Compressor

import mxnet as mx
from mlt._named import elements
from mlt._named.controller import Handle, RejectedError
from mlt._named.gradients import BoundedLossState, agree_on, layers_of, listed, settle
from mlt._named.groups import positions
from mlt._named.operations import start
from mlt._named.process_sets import ProcessSet, global_process_set
from mlt._named.reduce_ops import Average, check_lossy


class GradientExchange:
    """Averages lists of gradients. ``name``: the same on all ranks.

    ``num_groups``: number of layers; 0: by size, of about ``state.bucket_bytes``. ``state``: the loss that is allowed.
    """

    def __init__(
        self,
        name: str,
        *,
        compression: type[Compressor] = Compression.none,
        gradient_predivide_factor: float = 1.0,
        num_groups: int = 0,
        process_set: ProcessSet = global_process_set,
        state: BoundedLossState | None = None,
    ) -> None:
        if num_groups < 0:
            raise ValueError(f"num_groups is {num_groups}; give a number of groups, or 0 for layers by their size")
        self.name = name
        self.state = BoundedLossState(0.0) if state is None else state
        self._compression = compression
        self._predivide = float(gradient_predivide_factor)
        self._num_groups = num_groups
        self._process_set = process_set
        if not self.state.is_exact:
            check_lossy(Average)

    def __call__(self, gradients: Sequence[mx.nd.NDArray], labels: Sequence[str]) -> None:
        """Replace gradients, the front layer's first, by their averages. ``labels``: their names in errors.

        Raises HorovodInternalError; if the ranks have different gradients, none was changed.
        """
        if not gradients:
            return
        for gradient, label in zip(gradients, labels, strict=True):
            check_dense(gradient, f"the gradient of {label}")
        specs = tuple(map(spec_of, gradients))
        sizes = [elements.elements(shape) * elements.item_bytes(dtype) for dtype, shape in specs]
        groups = positions(self._num_groups, range(len(sizes))) if self._num_groups else ()
        layers = layers_of(sizes, self.state.bucket_bytes, groups)
        scales = {}
        if self._predivide != 1.0:
            scales = {"prescale": 1.0 / self._predivide, "postscale": self._predivide}
        handles: list[Handle] = []
        contexts: dict[int, tuple[Arrays, list[Any]]] = {}
        try:
            if len(layers) > 1:
                agree_on(self.name, specs, self._process_set, layers=len(layers))
            for number in reversed(range(len(layers))):
                pairs = [self._compression.compress(gradients[position]) for position in layers[number]]
                held = Arrays([tensor for tensor, _ in pairs], in_place=True)
                contexts[number] = held, [ctx for _, ctx in pairs]
                handles.append(
                    start(
                        "allreduce",
                        held,
                        self.name if len(layers) == 1 else f"{self.name}/layer {number} of {len(layers)}",
                        self._process_set,
                        Average,
                        bound=self.state.bound(number),
                        priority=-number,
                        layer=number,
                        layers=len(layers),
                        **scales,
                    )
                )
            self.state.exchange(handles[::-1])
        except RejectedError as error:
            # One that the ranks disagree about; the others end as well, before the caller may continue.
            settle(handles)
            raise RejectedError(f"{error}; {listed(specs, labels)}") from None
        for number, layer in enumerate(layers):
            held, of = contexts[number]
            for position, result, ctx in zip(layer, held.results(), of, strict=True):
                if result is not gradients[position]:
                    gradients[position][:] = self._compression.decompress(result, ctx)
